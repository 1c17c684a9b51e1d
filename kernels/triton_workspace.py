"""Device memory of the walk kernel: scratch, barrier counters and results, made once and reused."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from . import triton_layout as layout
from .triton_points import NUM_COLUMNS, TABLE_SIZE

# B requests, G rows of each, N blocks of the vocabulary.

MAX_BLOCK_SIZE = 1024
"""Tokens of one block: 126 blocks at V = 128,256, as many as an H200 has multiprocessors."""

MAX_VOCAB_SIZE = 2**18
"""Tokens for which `triton_statistics.ROUNDING` bounds the rounding of a sum."""

MIN_BLOCK_SIZE = 32
TOKENS_PER_WARP = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Workspace:
    """Everything a launch writes. Launches that share one must follow each other on one stream."""

    vocab_size: int
    num_splits: int
    """Programs that share a request; results do not depend on it."""
    facts: Tensor
    """(B, G, NUM_FACTS) float64."""
    flags: Tensor
    """(B, G, NUM_FLAGS) bool."""
    token_ids: Tensor
    """(B, G) int64."""
    walks: Tensor
    """(B, G + 1, 2) float64."""
    records: Tensor
    """(B, G, NUM_RECORDS, N) float64."""
    tables: Tensor
    """(B, G, NUM_COLUMNS, TABLE_SIZE) float64."""
    counters: Tensor
    """(B,) int64; 0 at first, and never to be written by others."""

    @property
    def num_requests(self) -> int:
        return self.token_ids.shape[0]

    @property
    def num_positions(self) -> int:
        return self.token_ids.shape[1]

    @property
    def block_size(self) -> int:
        return block_size(self.vocab_size)

    @property
    def num_blocks(self) -> int:
        return -(-self.vocab_size // self.block_size)

    @property
    def num_slots(self) -> int:
        """The power of two that holds one value of every block."""
        return max(2, int(triton.next_power_of_2(self.num_blocks)))

    @property
    def num_warps(self) -> int:
        return max(1, self.block_size // TOKENS_PER_WARP)


def workspace(
    num_requests: int, num_positions: int, vocab_size: int, device: torch.device, num_splits: int
) -> Workspace:
    """Memory for walks of `num_requests` x `num_positions` rows of `vocab_size` logits.

    num_splits: programs a request, in [1, blocks]; see `resident_splits`.
    Raises: ValueError if a size is below 1, vocab_size above MAX_VOCAB_SIZE or num_splits out of
    range.
    """
    if vocab_size > MAX_VOCAB_SIZE:
        raise ValueError(f"vocab_size must be at most {MAX_VOCAB_SIZE}, got {vocab_size}")
    sizes = (num_requests, num_positions, vocab_size)
    num_blocks = -(-vocab_size // block_size(max(1, vocab_size)))
    if min(sizes) < 1 or not 1 <= num_splits <= num_blocks:
        raise ValueError(
            f"sizes must be >= 1 and num_splits in [1, {num_blocks}], got {sizes} and {num_splits}"
        )
    rows = (num_requests, num_positions)

    def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.zeros(*shape, dtype=dtype, device=device)

    return Workspace(
        vocab_size=vocab_size,
        num_splits=num_splits,
        facts=zeros(*rows, layout.NUM_FACTS.value),
        flags=zeros(*rows, layout.NUM_FLAGS.value, dtype=torch.bool),
        token_ids=zeros(*rows, dtype=torch.int64),
        walks=zeros(num_requests, num_positions + 1, 2),
        # The largest by far; what is read of it was written in the same launch.
        records=torch.empty(
            *rows, layout.NUM_RECORDS.value, num_blocks, dtype=torch.float64, device=device
        ),
        tables=zeros(*rows, NUM_COLUMNS.value, TABLE_SIZE.value),
        counters=zeros(num_requests, dtype=torch.int64),
    )


def block_size(vocab_size: int) -> int:
    """Tokens of one block; it depends on the vocabulary alone, and so does every sum."""
    return min(MAX_BLOCK_SIZE, max(MIN_BLOCK_SIZE, int(triton.next_power_of_2(vocab_size))))


def resident_splits(num_requests: int, vocab_size: int, device: torch.device) -> int:
    """Programs a request so that one wave fills the device: all are resident, as barriers need.

    1 on the CPU, where the interpreter runs programs one after another.
    """
    if device.type != "cuda":
        return 1
    num_processors = torch.cuda.get_device_properties(device).multi_processor_count
    num_blocks = -(-vocab_size // block_size(vocab_size))
    return min(num_blocks, max(1, num_processors // num_requests))
