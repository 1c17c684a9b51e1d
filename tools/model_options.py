"""Options of every command that loads a model pair."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from transformers.quantizers.auto import AutoQuantizationConfig
from transformers.utils.logging import disable_progress_bar
from transformers.utils.quantization_config import QuantizationConfigMixin

from anchored import ModelPair


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """Two models, with one tokenizer or two."""

    safe: Path
    """Hugging Face folder or Hub id of the safe model."""
    risky: Path
    """Hugging Face folder or Hub id of the risky model."""
    dtype: str = "auto"
    """auto (as stored), float32, bfloat16, float16 or float64."""
    device: str | None = None
    """cpu, cuda, cuda:0, ...; CUDA where there is one unless given."""
    risky_device: str | None = None
    """Another device for the risky model."""
    risky_quantization: Path | None = None
    """JSON file of a transformers quantisation config, as {"quant_method": "torchao", ...}."""
    allow_quantized_safe: bool = False
    """Take a quantised safe model: the bound then holds against that one."""
    tp_size: int = 1
    """Processes the risky model is split over: torchrun --nproc-per-node N -m anchored.tools.cli"""

    def pair(self) -> ModelPair:
        """Both models, loaded without a bar for every file of weights; ValueError if refused."""
        quantization = _quantization(self.risky_quantization)
        disable_progress_bar()
        return ModelPair.from_pretrained(
            self.safe,
            self.risky,
            dtype=self.dtype,
            device=self._devices(),
            risky_quantization=quantization,
            allow_quantized_safe=self.allow_quantized_safe,
            tp_size=self.tp_size,
        )

    def _devices(self) -> str | dict[str, str] | None:
        if self.risky_device is None:
            return self.device
        if self.device is None:
            raise ValueError(
                f"--risky-device {self.risky_device} needs --device for the safe model"
            )
        return {"safe": self.device, "risky": self.risky_device}


def is_first_process() -> bool:
    """Whether this process prints and writes; of several that torchrun started, one does."""
    return os.environ.get("RANK", "0") == "0"


def _quantization(file: Path | None) -> QuantizationConfigMixin | None:
    if file is None:
        return None
    settings = json.loads(file.read_text())
    if not isinstance(settings, dict) or "quant_method" not in settings:
        raise ValueError(f'{file} must hold an object with "quant_method"')
    return AutoQuantizationConfig.from_dict(settings)
