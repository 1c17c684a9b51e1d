"""The outcome of one check of a kernel on this machine."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from anchored.kernels.gpu.launch import is_interpreted


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
