"""Counter-based uniforms: three per (key, position), the same on every device and in any batch."""

import torch
from torch import Tensor

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
    Raises: ValueError if a shape, dtype or position is out of range.
    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10);
    a key is (low word, high word) and the counter (block low, block high, 0, 0), as in Triton's
    randint4x(key, block), so that a GPU kernel draws the same numbers.
    """
    _check(keys, positions)
    keys = keys.view(-1, *[1] * (positions.ndim - 1)).expand_as(positions)
    words = philox(keys, torch.stack([2 * positions, 2 * positions + 1]))
    first, second = words.unbind(1)
    return torch.stack(
        [_unit(first[0], first[1]), _unit(first[2], first[3]), _unit(second[0], second[1])], dim=-1
    )


def philox(keys: Tensor, blocks: Tensor) -> Tensor:
    """Philox4x32-10 output of counter blocks.

    blocks: int64; keys: int64, of a shape that expands to it; both unsigned 64-bit numbers.
    Returns: (4,) + the shape of blocks, int64 words in [0, 2**32).
    """
    zero = torch.zeros_like(blocks)
    counter = torch.stack([blocks & MASK_32, blocks >> 32 & MASK_32, zero, zero])
    keys = keys.expand_as(blocks)
    return philox_words(counter, torch.stack([keys & MASK_32, keys >> 32 & MASK_32]))


def philox_words(counter: Tensor, key: Tensor) -> Tensor:
    """Philox4x32-10 of a full 128-bit counter and 64-bit key.

    counter: (4, ...) and key: (2, ...) int64 words in [0, 2**32). Returns: (4, ...) such words.
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


def _check(keys: Tensor, positions: Tensor) -> None:
    if keys.dtype != torch.int64 or positions.dtype != torch.int64:
        raise ValueError(
            f"keys and positions must be int64, got {keys.dtype} and {positions.dtype}"
        )
    if keys.ndim != 1 or positions.ndim not in (1, 2) or len(positions) != len(keys):
        raise ValueError(
            f"positions must be (B,) or (B, T) with keys (B,), "
            f"got {tuple(positions.shape)} and {tuple(keys.shape)}"
        )
    if positions.numel() and int(positions.min()) < 0:
        raise ValueError(f"positions must be >= 0, got {int(positions.min())}")
