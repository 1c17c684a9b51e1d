"""How rows are cut into blocks, what a program reads at once, and how many programs share a row."""

import triton
from torch import Tensor

from .weights import NUM_LANES

MAX_BLOCK_SIZE = 1024
"""Tokens of one block: 126 blocks at V = 128,256, as many as an H200 has multiprocessors."""

MAX_VOCAB_SIZE = 2**18
"""Tokens for which `statistics.ROUNDING` bounds the rounding of a sum."""

MIN_BLOCK_SIZE = 32
VECTOR_BYTES = 16
"""What a lane reads at once."""

PROGRAMS_PER_PROCESSOR = 8
"""Programs, of one warp each, that a multiprocessor holds with whatever registers: two for each of
its schedulers. More would repeat what all programs of a request compute alike."""


def block_size(vocab_size: int) -> int:
    """Tokens of one block; it depends on the vocabulary alone, and so does every sum."""
    return min(MAX_BLOCK_SIZE, max(MIN_BLOCK_SIZE, int(triton.next_power_of_2(vocab_size))))


def step_size(*logits: Tensor) -> int:
    """Tokens of a block that a program reads at once: a vector for each lane."""
    step = NUM_LANES.value * VECTOR_BYTES // max(each.element_size() for each in logits)
    return int(min(step, *(block_size(each.shape[-1]) for each in logits)))


def splits_of(num_requests: int, vocab_size: int, num_processors: int) -> int:
    """Programs a request so that one wave fills a device of so many multiprocessors."""
    num_blocks = -(-vocab_size // block_size(vocab_size))
    return min(num_blocks, max(1, PROGRAMS_PER_PROCESSOR * num_processors // num_requests))
