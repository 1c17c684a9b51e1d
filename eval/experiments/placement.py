"""Where the models of a sweep lie: which GPUs each of its processes has, and whether they fit."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ...configs.config_file import from_table
from ...decode.models.folder import model_location
from ...decode.pair_options import ModelOptions

ROOM: Final = 1.15
"""Of the weights' bytes, what a pair takes with caches, logits and the CUDA context: 173 GB for the
152 GB of Llama 3.1 70B and TinyComma with 48 texts at once (docs/reproduce.md)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """[placement] of a sweep's file."""

    gpus: int = 1
    """GPUs that each process has to itself; torchrun starts a process a group."""
    gpu_memory: float = 0.0
    """GB of each, for a plan on a machine that has none; else the machine's own count."""
    gpu_bandwidth: float = 0.0
    """GB/s of each GPU's memory, for a plan's hours; none are given without it."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the pair, by the names that anchored generate has for them, as risky_device_map."""
    vllm: dict[str, Any] = field(default_factory=dict)
    """Arguments of vLLM's engine, for a sweep that draws by it: gpu_memory_utilization and the
    like; tensor_parallel_size is gpus unless given."""

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ValueError(f"placement.gpus must be >= 1, got {self.gpus}")
        for name in ("gpu_memory", "gpu_bandwidth"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"placement.{name} must be >= 0, got {getattr(self, name)}")
        is_spread = {"risky_device", "risky_device_map"} & set(self.options)
        if self.gpus > 1 and not is_spread:
            raise ValueError(
                f"placement.gpus = {self.gpus}, but both models would lie on the first: give "
                'placement.options risky_device = "cuda:1" or risky_device_map = "auto"'
            )

    def models(self, safe: Path, risky: Path, device: str) -> ModelOptions:
        """The pair's options. Raises: ValueError for an unknown one, or one of the wrong type."""
        table = {"safe": safe, "risky": risky, **({"device": device} if device else {})}
        models: ModelOptions = from_table(ModelOptions, table | self.options, "placement.options.")
        return models

    def weights(self, models: ModelOptions) -> dict[str, int] | None:
        """Bytes of both models' safetensors; None where one is still on the Hub."""
        sizes: dict[str, int] = {}
        for name, model in models.locations.items():
            if isinstance(folder := model_location(model), str):
                return None
            sizes[name] = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        return sizes

    def take_gpus(self, device: str) -> None:
        """Show this process the GPUs of its own group alone, before any of them is in use.

        Of processes that torchrun started, the one with the number n has the GPUs from n * gpus on.
        Raises: ValueError where there are not as many.
        """
        import torch

        count = 0 if device == "cpu" else torch.cuda.device_count()
        if count == 0:
            return
        first = int(os.environ.get("LOCAL_RANK", "0")) * self.gpus
        if first + self.gpus > count:
            raise ValueError(
                f"this process would take the GPUs {first} to {first + self.gpus - 1} of {count}: "
                f"start at most {count // self.gpus} with {self.gpus} each"
            )
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible else [str(number) for number in range(count)]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names[first : first + self.gpus])

    def plan(self, models: ModelOptions) -> str:
        """Where the pair will lie, in words, and how much that takes.

        Raises: ValueError for weights that the GPUs of a process do not hold.
        """
        given = ", ".join(f"{name} = {value}" for name, value in self.options.items())
        where = models.device or "CUDA where there is one"
        lines = [f"each process: {self.gpus} GPU(s), device = {where}{given and ', ' + given}"]
        sizes = self.weights(models)
        if models.device == "cpu" or sizes is None or models.risky_quantization:
            return lines[0]
        num_bytes, memory = sum(sizes.values()), _gpu_memory() or self.gpu_memory
        needed = ROOM * num_bytes / 1e9
        lines.append(f"weights of {num_bytes / 1e9:,.1f} GB take about {needed:,.1f} GB")
        if memory and needed > self.gpus * memory:
            raise ValueError(
                f"{lines[1]}, and {self.gpus} GPU(s) of {memory:,.1f} GB hold "
                f"{self.gpus * memory:,.1f}: raise placement.gpus, or quantize the risky model"
            )
        return "; ".join(lines)


def _gpu_memory() -> float:
    """GB of the first GPU; 0 without one."""
    import torch

    if not torch.cuda.is_available():
        return 0.0
    return float(torch.cuda.get_device_properties(0).total_memory) / 1e9
