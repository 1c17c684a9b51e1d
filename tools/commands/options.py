"""Options of commands that load a pair of models; torch is imported when one is."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anchored

from .files import check_input

Dtype = Literal["auto", "float32", "bfloat16", "float16", "float64"]
_DEVICES = re.compile(r"cpu|mps|(cuda|xpu)(:\d+)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """Two models, with one tokenizer or two."""

    safe: Path
    """Hugging Face folder or Hub id of the safe model."""
    risky: Path
    """Hugging Face folder or Hub id of the risky model."""
    dtype: Dtype = "auto"
    """auto: as stored."""
    device: str | None = None
    """cpu, cuda, cuda:0, ...; CUDA where there is one unless given."""
    risky_device: str | None = None
    """Another device for the risky model."""
    risky_device_map: str | None = None
    """auto, balanced, ... of accelerate: spreads a risky model that no device holds."""
    safe_revision: str | None = None
    """Branch, tag or commit of the safe model's Hub id."""
    risky_revision: str | None = None
    """The same of the risky model's."""
    safe_attn_implementation: str | None = None
    """sdpa, eager, ... of transformers, for the safe model."""
    risky_attn_implementation: str | None = None
    """The same for the risky model."""
    risky_quantization: Path | None = None
    """JSON file of a transformers quantisation config, as {"quant_method": "torchao", ...}."""
    allow_quantized_safe: bool = False
    """Take a quantised safe model: the bound then holds against that one."""
    tp_size: int = 1
    """Processes the risky model is split over: torchrun --nproc-per-node N -m anchored.tools.cli"""

    def __post_init__(self) -> None:
        for model in (self.safe, self.risky):
            _check_model(model)
        check_input(self.risky_quantization)
        for device in (self.device, self.risky_device):
            if device is not None:
                check_device_name(device)
        if self.risky_device is not None and self.device is None:
            raise ValueError(
                f"--risky-device {self.risky_device} needs --device for the safe model"
            )
        if self.tp_size < 1:
            raise ValueError(f"--tp-size must be >= 1, got {self.tp_size}")

    def pair(self) -> "anchored.ModelPair":
        """Both models, loaded without a bar for every file of weights; ValueError if refused."""
        from transformers.utils.logging import disable_progress_bar

        from anchored.decode.models.loading import quantization_config

        for device in (self.device, self.risky_device):
            check_presence(device or "cpu")
        file = self.risky_quantization
        quantization = None if file is None else quantization_config(file)
        disable_progress_bar()
        return anchored.ModelPair.from_pretrained(
            self.safe,
            self.risky,
            dtype=self.dtype,
            device=self._devices(),
            risky_quantization=quantization,
            allow_quantized_safe=self.allow_quantized_safe,
            tp_size=self.tp_size,
            safe_options=self._safe_options(),
            risky_options=self._risky_options(),
        )

    def _safe_options(self) -> "anchored.LoadOptions":
        return anchored.LoadOptions(
            revision=self.safe_revision, attn_implementation=self.safe_attn_implementation
        )

    def _risky_options(self) -> "anchored.LoadOptions":
        return anchored.LoadOptions(
            revision=self.risky_revision,
            attn_implementation=self.risky_attn_implementation,
            device_map=self.risky_device_map,
        )

    def _devices(self) -> str | dict[str, str] | None:
        if self.device is None or self.risky_device is None:
            return self.device
        return {"safe": self.device, "risky": self.risky_device}


def is_first_process() -> bool:
    """Whether this process prints and writes; of several that torchrun started, one does."""
    return os.environ.get("RANK", "0") == "0"


def _check_model(model: Path) -> None:
    """Raise FileNotFoundError for what is neither a folder nor the OWNER/NAME of a Hub id."""
    if not model.exists() and (model.is_absolute() or len(model.parts) != 2):
        raise FileNotFoundError(f"no model folder with a config.json at {model}")


def check_device_name(device: str) -> None:
    """Raise ValueError for what can be no device; torch is not asked."""
    if not _DEVICES.fullmatch(device):
        raise ValueError(f"a device must be cpu, cuda, cuda:N, xpu, xpu:N or mps, got {device!r}")


def check_presence(device: str) -> None:
    """Raise ValueError if this machine has no such device."""
    if device == "cpu":
        return
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count() if accelerator else 0
    name, _, index = device.partition(":")
    if accelerator is None or accelerator.type != name or int(index or 0) >= count:
        found = f"{count} of type {accelerator.type}" if accelerator else "none but the CPU"
        raise ValueError(f"there is no device {device} on this machine, which has {found}")
