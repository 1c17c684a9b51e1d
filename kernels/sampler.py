"""The coupled sampler: uniforms by key and position, and the draw that they make.

The uniforms are the same on every device and in any batch; the draw is the safe model's token
wherever p* allows, else one of the residual.
"""

from __future__ import annotations

import torch
from torch import Tensor

# A rows drawn for, B requests, T positions, V vocabulary.

NUM_ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
MASK_32 = 0xFFFFFFFF


def uniforms(keys: Tensor, positions: Tensor) -> Tensor:
    """Three independent uniforms for every (key, position).

    keys: (B,) int64, any value.
    positions: (B,) or (B, T) int64, each >= 0.
    Returns: positions.shape + (3,) float64 in [0, 1), multiples of 2**-53: u1 from words 0 and 1
    of Philox block 2 * position, u2 from its words 2 and 3, u3 from words 0 and 1 of block
    2 * position + 1.
    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10);
    a key is (low word, high word) and the counter (block low, block high, 0, 0), as in Triton's
    randint4x(key, block), so that a GPU kernel draws the same numbers.
    """
    keys = keys.view(-1, *[1] * (positions.ndim - 1)).expand_as(positions)
    blocks = torch.stack([2 * positions, 2 * positions + 1])
    zero = torch.zeros_like(blocks)
    counter = torch.stack([blocks & MASK_32, blocks >> 32 & MASK_32, zero, zero])
    key = torch.stack([keys & MASK_32, keys >> 32 & MASK_32])[:, None]
    first, second = philox(counter, key).unbind(1)
    return torch.stack(
        [_unit(first[0], first[1]), _unit(first[2], first[3]), _unit(second[0], second[1])], dim=-1
    )


def philox(counter: Tensor, key: Tensor) -> Tensor:
    """Philox4x32-10 of a full 128-bit counter and 64-bit key.

    counter: (4, ...) and key: (2, ...), which broadcast, int64 words in [0, 2**32).
    Returns: (4, ...) such words.
    """
    column = (2, *[1] * (counter.ndim - 1))
    multipliers = counter.new_tensor(MULTIPLIERS).view(column)
    increments = counter.new_tensor(KEY_INCREMENTS).view(column)
    even, odd = counter[0::2], counter[1::2]
    for _ in range(NUM_ROUNDS):
        high, low = _wide_product(multipliers, even)
        even, odd = high.flip(0) ^ odd ^ key, low.flip(0)
        key = key + increments & MASK_32
    return torch.stack([even[0], odd[0], even[1], odd[1]])


def _wide_product(multiplier: Tensor, word: Tensor) -> tuple[Tensor, Tensor]:
    # In 16-bit halves: the 64-bit product of two unsigned words does not fit a signed int64.
    low = (multiplier & 0xFFFF) * word
    high = (multiplier >> 16) * word + (low >> 16)
    return high >> 16, (high & 0xFFFF) << 16 | low & 0xFFFF


def _unit(high: Tensor, low: Tensor) -> Tensor:
    # 53 bits is all a float64 in [0, 1) holds without rounding up to 1.
    return (high << 21 | low >> 11).double() * 2.0**-53


def coupled_sample(
    safe_log_probs: Tensor, log_probs: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw from p* so that the token is the safe model's draw as often as possible.

    safe_log_probs, log_probs: (B, V) float, nats, each row normalized; p* may have mass where p_s
    has none. uniform: (B, 3) float64 in [0, 1).
    Returns: token_ids (B,) int64, never one with p* = 0, and accepted (B,) bool; accepted with
    probability 1 - TV(p*, p_s), the most any coupling reaches.
    Source: the acceptance rule of Leviathan et al. 2023, "Fast inference from transformers via
    speculative decoding", algorithm 1, with the uniforms fixed beforehand.
    """
    safe_log_probs, log_probs = safe_log_probs.double(), log_probs.double()
    # 1. The safe model's draw by u1, kept where u2 p_s < p*.
    draft = inverse_cdf(safe_log_probs.exp(), uniform[:, 0])
    safe_prob = safe_log_probs.gather(1, draft[:, None])[:, 0].exp()
    prob = log_probs.gather(1, draft[:, None])[:, 0].exp()
    # 2. Else another one is drawn by u3, from what p* has more than p_s. Rounding can leave nothing
    #    of that though the draft failed: then p* is p_s to rounding.
    weights = _residual(safe_log_probs, log_probs)
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


def first_above(running_sum: Tensor, target: Tensor) -> Tensor:
    """(A,) int64: the first index of each row above its target; its weight is positive if any
    is."""
    # Below the last sum: an index whose weight is positive exists, whatever the sums' rounding.
    last = torch.nextafter(running_sum[:, -1], torch.zeros_like(target))
    return torch.searchsorted(running_sum, torch.minimum(target, last)[:, None], right=True)[:, 0]


def _residual(safe_log_probs: Tensor, log_probs: Tensor) -> Tensor:
    """(p* - p_s)_+ as p* (1 - exp(-log p*/p_s)), which keeps its digits where the two nearly agree
    and stays finite where p_s underflows or is 0."""
    log_ratio = torch.where(log_probs > -torch.inf, log_probs - safe_log_probs, 0.0)
    return log_ratio.neg_().expm1_().neg_().clamp_min_(0.0).mul_(log_probs.exp())
