"""Time of one projection and draw on a GPU, beside the paper's algorithm in torch."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from anchored.kernels.gpu.launch import project_into, resident_splits, workspace
from anchored.kernels.uniforms import uniforms
from anchored.tools.bench_kernel import (
    BUDGET_NATS,
    BenchKernelConfig,
    paper_projection,
    sample_logits,
)

TARGET_US = {1: 12.0, 4: 14.0, 16: 25.0, 64: 55.0, 256: 170.0}
"""By batch size, for an H200: what we set out to reach."""
VOCAB_SIZE = 128_256
NUM_ROUNDS = 7
REPLAYS_PER_ROUND = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelTiming:
    """Microseconds of one step at one batch size, medians over rounds."""

    batch_size: int
    divergence: str
    step_us: float
    error_us: float
    """Half the range between the quartiles of the rounds."""
    target_us: float
    paper_us: float
    """The paper's algorithm in torch, without the draw; replayed as a CUDA graph too."""


def kernel_timings(device: torch.device) -> Iterator[KernelTiming]:
    """Each batch size and divergence, bf16 logits, as CUDA graph replays of one launch."""
    for batch_size in TARGET_US:
        yield from _timings(device, batch_size)


def _timings(device: torch.device, batch_size: int) -> Iterator[KernelTiming]:
    logits = sample_logits(BenchKernelConfig(vocab_size=VOCAB_SIZE), batch_size)
    risky, safe = (x.to(device, torch.bfloat16) for x in logits)
    budget = torch.full((batch_size,), BUDGET_NATS, dtype=torch.float64, device=device)
    rows = torch.arange(batch_size)
    uniform = uniforms(rows, rows).to(device)
    memory = workspace(
        batch_size, 1, VOCAB_SIZE, device, resident_splits(batch_size, VOCAB_SIZE, device)
    )
    baseline = partial(paper_projection, risky, safe, budget.float(), may_stop=False)
    paper_us = statistics.median(replay_us(device, baseline))
    for divergence in ("kl", "max"):
        step = partial(
            project_into, memory, risky, safe, budget, uniform, is_max=divergence == "max"
        )
        times = replay_us(device, step)
        quartiles = statistics.quantiles(times, n=4)
        yield KernelTiming(
            batch_size=batch_size,
            divergence=divergence,
            step_us=statistics.median(times),
            error_us=0.5 * (quartiles[2] - quartiles[0]),
            target_us=TARGET_US[batch_size],
            paper_us=paper_us,
        )


def replay_us(device: torch.device, launch: Callable[[], object]) -> list[float]:
    """Microseconds of one replay of the captured work, one mean a round."""
    graph = _captured(device, launch)
    times = []
    for _ in range(NUM_ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(REPLAYS_PER_ROUND):
            graph.replay()
        end.record()
        torch.cuda.synchronize(device)
        times.append(1e3 * start.elapsed_time(end) / REPLAYS_PER_ROUND)
    return times


def _captured(device: torch.device, launch: Callable[[], object]) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            launch()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    return graph
