"""Time of a byte of a small pair with two tokenizers on a GPU, forwards and draw included."""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .byte_checks import NUM_BEFORE, opened_batch

BATCH_SIZES = (1, 4, 16)
NUM_BYTES = 64
NUM_ROUNDS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteTiming:
    """Milliseconds of one step of a whole batch, the median over rounds."""

    batch_size: int
    ms_per_byte: float
    error_ms: float
    """Half the range between the quartiles of the rounds."""


def byte_timings(device: torch.device) -> Iterator[ByteTiming]:
    """Each batch size, bfloat16 models."""
    for batch_size in BATCH_SIZES:
        total = NUM_BEFORE + NUM_ROUNDS * NUM_BYTES
        batch = opened_batch(
            device, batch_size=batch_size, dtype=torch.bfloat16, num_bytes=total + 1
        )
        for _ in range(NUM_BEFORE):
            batch.step()
        times = []
        for _ in range(NUM_ROUNDS):
            torch.cuda.synchronize(device)
            start = time.perf_counter()
            for _ in range(NUM_BYTES):
                batch.step()
            torch.cuda.synchronize(device)
            times.append(1e3 * (time.perf_counter() - start) / NUM_BYTES)
        quartiles = statistics.quantiles(times, n=4)
        yield ByteTiming(
            batch_size=batch_size,
            ms_per_byte=statistics.median(times),
            error_ms=0.5 * (quartiles[2] - quartiles[0]),
        )
