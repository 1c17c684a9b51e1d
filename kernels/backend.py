"""Which implementation of a kernel runs."""

import torch

BACKENDS = ("auto", "torch", "triton")


def resolved_backend(backend: str, device: torch.device) -> str:
    """The implementation that `backend` stands for: "auto" is "triton" on CUDA, else "torch".

    Raises: ValueError for another name.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "auto":
        return "triton" if device.type == "cuda" else "torch"
    return backend


def check_triton(device: torch.device) -> None:
    """Raise ValueError where Triton cannot run: on the CPU, unless it is interpreted."""
    from .gpu.launch import check_device  # triton is not there on every platform

    check_device(device)
