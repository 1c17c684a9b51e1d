"""Times on a GPU: one projection and draw, and a step that drafts."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from anchored import Anchored, ModelPair
from anchored.decode.engine.device_batch import DeviceBatch
from anchored.decode.engine.draft_length import LENGTHS
from anchored.decode.engine.request import Request
from anchored.decode.levels.level import TokenLevel
from anchored.decode.settings import SamplingConfig
from anchored.kernels.accounts import new_accounts
from anchored.kernels.gpu.launch import project_into
from anchored.kernels.uniforms import uniforms
from anchored.kernels.walk import walk, walk_memory
from anchored.tools.bench.baselines import ModelAlone
from anchored.tools.bench.kernel.kernel import BUDGET_NATS, paper_projection, sample_logits
from anchored.tools.bench.options import BenchKernelConfig
from anchored.tools.bench.timing import Stopwatch, half_quartile_range, timed

TARGET_US = {1: 12.0, 4: 14.0, 16: 25.0, 64: 55.0, 256: 170.0}
"""By batch size, for an H200: what we set out to reach."""
VOCAB_SIZE = 128_256
NUM_ROUNDS = 7
REPLAYS_PER_ROUND = 200
PROMPT_TOKENS = 256
NUM_TIMED = 7
TOKENS_TIMED = 64
ACCEPTANCE = {0.1: 0.834, 0.5: 0.637, 1.0: 0.522, 2.0: 0.421, 4.0: 0.286}
"""1 - TV(p*, p_s) by k, of the quickstart's trained pair: docs/results/bench-speculate.txt."""


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


def kernel_timings(device: torch.device, batch_size: int) -> Iterator[KernelTiming]:
    """Each divergence, bf16 logits, as CUDA graph replays of one launch."""
    logits = sample_logits(BenchKernelConfig(vocab_size=VOCAB_SIZE), batch_size)
    risky, safe = (x.to(device, torch.bfloat16) for x in logits)
    budget = torch.full((batch_size,), BUDGET_NATS, dtype=torch.float64, device=device)
    rows = torch.arange(batch_size)
    uniform = uniforms(rows, rows).to(device)
    memory = walk_memory(batch_size, 1, VOCAB_SIZE, device)
    assert memory is not None
    baseline = partial(paper_projection, risky, safe, budget.float(), may_stop=False)
    paper_us = statistics.median(replay_us(device, baseline))
    for divergence in ("kl", "max"):
        step = partial(
            project_into, memory, risky, safe, budget, uniform, is_max=divergence == "max"
        )
        times = replay_us(device, step)
        yield KernelTiming(
            batch_size=batch_size,
            divergence=divergence,
            step_us=statistics.median(times),
            error_us=half_quartile_range(times),
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


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundTiming:
    """Milliseconds of one step, and what they promise for a pair with the trained acceptance."""

    batch_size: int
    num_drafts: int
    step_ms: float
    error_ms: float
    """Half the range between the quartiles of a few looks at the device."""
    safe_ms: float
    """A step of the safe model alone."""
    risky_ms: float
    """A step of the risky model alone: c is safe_ms / risky_ms."""
    verified_ms: float
    """What each draft adds to a step beside its safe forward; nan without drafts."""
    walk_us: float
    """The walk alone, through all of its rows."""
    predicted: dict[float, float]
    """By k: speed as a multiple of the risky model alone. Predicted, not measured."""


def round_timings(pair: ModelPair, batch_sizes: tuple[int, ...]) -> Iterator[RoundTiming]:
    """Each batch size with each draft length; the pair is on CUDA."""
    for batch_size in batch_sizes:
        safe_ms, risky_ms = (alone_ms(pair, name, batch_size) for name in ("safe", "risky"))
        plain_ms = 0.0
        for num_drafts in LENGTHS:
            times = step_times_ms(pair, batch_size, num_drafts)
            step_ms = statistics.median(times)
            plain_ms = step_ms if num_drafts == 0 else plain_ms
            added_ms = step_ms - plain_ms - num_drafts * safe_ms
            yield RoundTiming(
                batch_size=batch_size,
                num_drafts=num_drafts,
                step_ms=step_ms,
                error_ms=half_quartile_range(times),
                safe_ms=safe_ms,
                risky_ms=risky_ms,
                verified_ms=added_ms / num_drafts if num_drafts else float("nan"),
                walk_us=statistics.median(
                    walk_times_us(batch_size, num_drafts, pair.vocab_size, pair.safe.device)
                ),
                predicted=predicted_ratios(num_drafts, step_ms, risky_ms),
            )


def predicted_ratios(num_drafts: int, step_ms: float, risky_ms: float) -> dict[float, float]:
    """By k: the tokens expected of a step by ACCEPTANCE, against one for a risky step."""
    return {
        k: sum(kept**place for place in range(num_drafts + 1)) * risky_ms / step_ms
        for k, kept in ACCEPTANCE.items()
    }


def step_times_ms(pair: ModelPair, batch_size: int, num_drafts: int) -> list[float]:
    """Milliseconds of a step at several looks of the host, behind prompts of PROMPT_TOKENS."""
    batch = DeviceBatch(
        TokenLevel(pair),
        Anchored(k=1.0, debt="none"),
        SamplingConfig(),
        num_rows=batch_size,
        max_length=2 * PROMPT_TOKENS,
        draft_lengths=(num_drafts,),
    )
    states = batch.admit(
        [
            Request(prompt_token_ids=prompt, max_new_tokens=PROMPT_TOKENS, seed=row)
            for row, prompt in enumerate(_prompts(batch_size))
        ]
    )
    batch.step()
    times = []
    for _ in range(NUM_TIMED):
        steps_before = max(state.num_forwards["risky"] for state in states)
        with Stopwatch() as watch:
            batch.step()  # waits for what was drawn
        num_steps = max(state.num_forwards["risky"] for state in states) - steps_before
        times.append(1e3 * watch.seconds / num_steps)
    return times


def alone_ms(pair: ModelPair, name: str, batch_size: int) -> float:
    """Milliseconds of a step of one model alone, as a CUDA graph on CUDA."""
    alone = ModelAlone(
        pair, name, num_rows=batch_size, max_length=2 * PROMPT_TOKENS, on_device=True
    )
    seconds = []
    for num_tokens in (1, 1 + TOKENS_TIMED):
        work = partial(alone.generate, _prompts(batch_size), num_tokens)
        work()
        seconds.append(timed(work, device="cuda")[0])
    return 1e3 * (seconds[1] - seconds[0]) / TOKENS_TIMED


def walk_times_us(
    batch_size: int, num_drafts: int, vocab_size: int, device: torch.device
) -> list[float]:
    """Microseconds of replayed walks through all rows: their drafts are what is drawn there."""
    num_rows = num_drafts + 1
    risky, safe = torch.randn(2, batch_size, num_rows, vocab_size, device=device).unbind(0)
    uniform = torch.rand(batch_size, num_rows, 3, dtype=torch.float64, device=device)
    ones = [1.0] * batch_size
    accounts = new_accounts(ones, ones, [0.0] * batch_size, "fixed", device)
    memory = walk_memory(batch_size, num_rows, vocab_size, device)
    drafts = torch.full((batch_size, num_drafts), -1, dtype=torch.int64, device=device)
    launch = partial(
        walk, risky, safe, accounts=accounts, uniform=uniform, drafts=drafts, memory=memory
    )
    for place in range(num_drafts):
        drafts[:, place] = launch().token_ids[:, place]
    assert bool(launch().was_reached.all())
    return replay_us(device, launch)


def _prompts(batch_size: int) -> list[list[int]]:
    return [[7 + row] * PROMPT_TOKENS for row in range(batch_size)]
