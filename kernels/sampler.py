"""The coupled sampler: the safe model's draw where it may stand, else the residual."""

from __future__ import annotations

import torch
from torch import Tensor

# A rows drawn for, B requests, V vocabulary.


def coupled_sample(
    safe_log_probs: Tensor, log_probs: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw from p* so that the token is the safe model's own draw as often as possible.

    safe_log_probs, log_probs: (B, V) float, nats, each row normalised; p* may have mass where p_s
    has none. uniform: (B, 3) float64 in [0, 1).
    Returns: token_ids (B,) int64, never one with p* = 0, and accepted (B,) bool; accepted with
    probability 1 - TV(p*, p_s), the most any coupling reaches.
    Raises: ValueError if the shapes differ.
    Source: the acceptance rule of Leviathan et al. 2023, "Fast inference from transformers via
    speculative decoding", algorithm 1, with the uniforms fixed beforehand.
    """
    if safe_log_probs.ndim != 2 or safe_log_probs.shape != log_probs.shape:
        raise ValueError(
            f"safe_log_probs and log_probs must both be (B, V), "
            f"got {tuple(safe_log_probs.shape)} and {tuple(log_probs.shape)}"
        )
    check_uniform(uniform, len(log_probs))
    check_unit(uniform)
    safe_log_probs, log_probs = safe_log_probs.double(), log_probs.double()
    draft = inverse_cdf(safe_log_probs.exp(), uniform[:, 0])
    safe_prob = safe_log_probs.gather(1, draft[:, None])[:, 0].exp()
    prob = log_probs.gather(1, draft[:, None])[:, 0].exp()
    weights = _residual(safe_log_probs, log_probs)
    # Rounding can leave no residual though the draft failed: then p* is p_s to rounding.
    is_empty = weights.sum(-1) <= 0.0
    accepted = (uniform[:, 1] * safe_prob < prob) | (is_empty & (prob > 0.0))
    weights = torch.where(is_empty[:, None], log_probs.exp(), weights)
    return torch.where(accepted, draft, inverse_cdf(weights, uniform[:, 2])), accepted


def inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first index at which the running sum of the weights exceeds uniform times their total.

    weights: (A, N) float64, at least 0, each row with a positive sum. uniform: (A,) in [0, 1).
    Returns: (A,) int64; its weight is positive.
    """
    running_sum = weights.cumsum(-1)
    return first_above(running_sum, uniform * running_sum[:, -1])


def check_uniform(uniform: Tensor, num_rows: int) -> None:
    """Raise ValueError unless `uniform` is (num_rows, 3) float64; its values may be any."""
    if uniform.shape != (num_rows, 3) or uniform.dtype != torch.float64:
        raise ValueError(
            f"uniform must be ({num_rows}, 3) float64, got {tuple(uniform.shape)} {uniform.dtype}"
        )


def check_unit(uniform: Tensor) -> None:
    """Raise ValueError unless all values are in [0, 1); waits for the device."""
    host = uniform.cpu().numpy()
    if not ((host >= 0.0) & (host < 1.0)).all():
        raise ValueError(f"uniform must be in [0, 1), got {uniform.tolist()}")


def first_above(running_sum: Tensor, target: Tensor) -> Tensor:
    """(A,) int64: the first index of each row (A, N) above its target, (A,); its weight is positive
    if any is."""
    # Below the last sum: an index whose weight is positive exists, whatever the sums' rounding.
    last = torch.nextafter(running_sum[:, -1], torch.zeros_like(target))
    return torch.searchsorted(running_sum, torch.minimum(target, last)[:, None], right=True)[:, 0]


def _residual(safe_log_probs: Tensor, log_probs: Tensor) -> Tensor:
    """(p* - p_s)_+ as p* (1 - exp(-log p*/p_s)), which keeps its digits where the two nearly agree
    and stays finite where p_s underflows or is 0."""
    log_ratio = torch.where(log_probs > -torch.inf, log_probs - safe_log_probs, 0.0)
    return log_ratio.neg_().expm1_().neg_().clamp_min_(0.0).mul_(log_probs.exp())
