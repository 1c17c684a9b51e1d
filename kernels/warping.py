"""Repetition penalty and temperature of both models, before the projection."""

import torch
from torch import Tensor

from .backend import resolved_backend

# B requests, V vocabulary.


def warped_logits(
    risky_logits: Tensor,
    safe_logits: Tensor,
    seen: Tensor,
    penalty: Tensor,
    temperature: Tensor,
    *,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Both models' logits after the repetition penalty and the temperature.

    risky_logits, safe_logits: (B, V), any float dtype and strides. seen: (B, V) bool, the tokens
    whose positive logits are divided by the penalty and whose others are multiplied by it.
    penalty, temperature: (B,) float32, > 0; read on the device, so their values are not checked.
    backend: "torch"; "triton", one launch; or "auto": "triton" on CUDA. Both give the same digits.
    Returns: risky and safe, (B, V) float32 each; -inf stays -inf and NaN stays NaN.
    Raises: ValueError for a wrong shape or dtype, or tensors that Triton cannot reach.
    Source: Keskar et al. 2019, "CTRL", section 4.1, as transformers applies it.
    """
    _check(risky_logits, safe_logits, seen, penalty, temperature)
    if resolved_backend(backend, risky_logits.device) == "triton":
        from .gpu.warping import launched_warping  # triton is not there on every platform

        return launched_warping(risky_logits, safe_logits, seen, penalty, temperature)
    risky, safe = (
        _warped(logits.float(), seen, penalty[:, None], temperature[:, None])
        for logits in (risky_logits, safe_logits)
    )
    return risky, safe


def _warped(logits: Tensor, seen: Tensor, penalty: Tensor, temperature: Tensor) -> Tensor:
    penalised = torch.where(logits > 0.0, logits / penalty, logits * penalty)
    return torch.where(seen, penalised, logits) / temperature


def _check(
    risky_logits: Tensor, safe_logits: Tensor, seen: Tensor, penalty: Tensor, temperature: Tensor
) -> None:
    shape = risky_logits.shape
    if len(shape) != 2 or safe_logits.shape != shape or seen.shape != shape:
        raise ValueError(
            "risky_logits, safe_logits and seen must all be (B, V), got "
            f"{tuple(shape)}, {tuple(safe_logits.shape)} and {tuple(seen.shape)}"
        )
    if seen.dtype != torch.bool:
        raise ValueError(f"seen must be bool, got {seen.dtype}")
    for name, values in (("penalty", penalty), ("temperature", temperature)):
        if values.shape != shape[:1] or values.dtype != torch.float32:
            raise ValueError(
                f"{name} must be ({shape[0]},) float32, got {tuple(values.shape)} {values.dtype}"
            )
