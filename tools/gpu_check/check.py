"""The outcome of a check of a kernel on this machine, and the logits that checks are made with."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from anchored.kernels.gpu.launch import is_interpreted

Shape = tuple[int, int]
Case = tuple[str, Tensor, Tensor]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A claim, whether it held, and the figures behind it."""

    name: str
    passed: bool | None
    """None if it could not be tried here."""
    detail: str


RunCheck = Callable[[torch.device], Check]


def skipped(name: str, reason: str) -> Check:
    return Check(name=name, passed=None, detail=f"skipped: {reason}")


def can_run(device: torch.device) -> bool:
    """Whether Triton kernels run on the device: CUDA, or the CPU under TRITON_INTERPRET=1."""
    return device.type == "cuda" or is_interpreted()


# B rows, V vocabulary.


def logit_cases(shape: Shape, device: torch.device, seed: int) -> Iterator[Case]:
    """Name, risky and safe logits (B, V) of every kind, the dtypes in turn."""
    for index, (name, make) in enumerate(_KINDS.items()):
        generator = torch.Generator(device).manual_seed(seed + index)
        risky, safe = make(shape, generator)
        dtype = DTYPES[index % len(DTYPES)]
        limit = 100.0 if name != "huge" else 1e4
        yield name, _within(risky, limit).to(dtype), _within(safe, limit).to(dtype)


def _within(logits: Tensor, limit: float) -> Tensor:
    return torch.where(logits == -torch.inf, logits, logits.clamp(-limit, limit))


def _noise(shape: Shape, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device)


def _generic(shape: Shape, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    base = 2.5 * _noise(shape, generator)
    return base + _noise(shape, generator), 0.8 * base + 0.5 * _noise(shape, generator)


def _memorised(shape: Shape, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    risky, safe = _generic(shape, generator)
    risky[:, shape[1] // 2] += 14.0
    return risky, safe


def _disjoint_peaks(shape: Shape, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    risky, safe = _generic(shape, generator)
    risky[:, 0], safe[:, -1] = 60.0, 40.0
    return risky, safe


def _identical(shape: Shape, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    logits = _noise(shape, generator)
    return logits, logits.clone()


def _tied(shape: Shape, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    risky, safe = _generic(shape, generator)
    return risky.round(), torch.zeros_like(safe)


def _masked(shape: Shape, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    pair = _generic(shape, generator)
    for logits in pair:
        banned = torch.rand(shape, generator=generator, device=generator.device) < 0.4
        banned[:, 0] = False
        logits.masked_fill_(banned, -torch.inf)
    return pair


def _huge(shape: Shape, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return 3e3 * _noise(shape, generator), 3e3 * _noise(shape, generator)


_KINDS: dict[str, Callable[[Shape, torch.Generator], tuple[Tensor, Tensor]]] = {
    "generic": _generic,
    "memorised": _memorised,
    "disjoint_peaks": _disjoint_peaks,
    "identical": _identical,
    "tied": _tied,
    "masked": _masked,
    "huge": _huge,
}
