"""One projection and draw against the paper's algorithm, and the charges side by side."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

import torch
from torch import Tensor

from anchored import text_tables
from anchored.kernels import reference
from anchored.kernels.project import project, project_kl
from anchored.kernels.projection import Charge
from anchored.kernels.sampler import uniforms

from .baselines import official_module
from .options import BenchKernelConfig
from .timing import THREAD, WALL, Clock, in_turns, timed, times_baseline

NUM_NEWTON_STEPS = 20  # in the authors' package too
NUM_BISECTION_STEPS = 12
BRACKET_TOLERANCE = 1e-9
"""Constants of the baseline; paper, algorithm ProjectKL and the paragraph after it."""

NUM_RUNS = 11
MALLOC_WARM_UP_BYTES = 30 * 2**20
"""Just below the 32 MiB above which glibc never recycles a buffer."""
BUDGET_NATS = 0.5
WIDTH = 15
TITLES = (
    *("batch", "paper solve ms", "our solve ms", "ratio", "error"),
    # The authors' package, where it is installed.
    *("official step", "our step ms", "ratio", "error"),
    *("paper over", "our over", "our shortfall"),
)
CHARGE_TITLES = ("batch", "charge", "step ms", "times mean", "error")
CHARGES: tuple[Charge, ...] = ("mean", "worst", "drawn")


@torch.inference_mode()
def run(config: BenchKernelConfig) -> int:
    """Print one table and return 0; in inference mode, as decoding runs."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        print(
            f"KL projection, V = {config.vocab_size}, float32 logits, budget {BUDGET_NATS} nats, "
            f"CPU, torch {torch.__version__}, {config.threads} thread(s), "
            f"median of {NUM_RUNS} runs, {'CPU time' if config.threads == 1 else 'elapsed time'}"
        )
        print("solve: the projection alone; step: with a token drawn; over, shortfall: nats")
        rows = (_cells(config, batch_size) for batch_size in config.batch_sizes)
        text_tables.print_lines(chain([TITLES], rows), WIDTH)
        print("\nWith a token drawn, by what the step is charged, in turns")
        rows = (row for size in config.batch_sizes for row in _charge_cells(config, size))
        text_tables.print_lines(chain([CHARGE_TITLES], rows), WIDTH)
    finally:
        torch.set_num_threads(threads_before)
    return 0


def paper_projection(
    risky_logits: Tensor, safe_logits: Tensor, budget: Tensor
) -> tuple[Tensor, Tensor]:
    """The paper's solver and the fused distribution: the baseline.

    risky_logits, safe_logits: (B, V). budget: (B,) float32 nats.
    Returns: the weight (B,) and log p* (B, V), float32.
    Source: paper, algorithm ProjectKL with its 20 safeguarded Newton steps, and the bisection
    that makes the result feasible, in float32 and vectorized over the batch.
    """
    safe, risky = safe_logits.float().log_softmax(-1), risky_logits.float().log_softmax(-1)
    tilt = risky - safe
    low, high = torch.zeros_like(budget), torch.ones_like(budget)
    weight = budget / (budget + 1.0)
    for _ in range(NUM_NEWTON_STEPS):
        kl, slope = _kl_and_slope(safe, tilt, weight)
        low, high = torch.where(kl <= budget, weight, low), torch.where(kl <= budget, high, weight)
        newton = weight - (kl - budget) / slope
        is_inside = (newton > low) & (newton < high)
        weight = torch.where(is_inside, newton, 0.5 * (low + high))
        if bool((high - low < BRACKET_TOLERANCE).all()):
            break
    for _ in range(NUM_BISECTION_STEPS):
        weight = 0.5 * (low + high)
        kl, _ = _kl_and_slope(safe, tilt, weight)
        low, high = torch.where(kl <= budget, weight, low), torch.where(kl <= budget, high, weight)
    full_kl = (risky.exp() * tilt).sum(-1)
    weight = torch.where(full_kl <= budget, 1.0, low).masked_fill(budget <= 0.0, 0.0)
    return weight, (safe + weight[:, None] * tilt).log_softmax(-1)


def _kl_and_slope(safe: Tensor, tilt: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    mixed = safe + weight[:, None] * tilt
    log_partition = mixed.logsumexp(-1)
    probs = (mixed - log_partition[:, None]).exp()
    mean = (probs * tilt).sum(-1)
    mean_square = (probs * tilt * tilt).sum(-1)
    return weight * mean - log_partition, weight * (mean_square - mean * mean)


def official_step() -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """One step as the package does it, (risky_logits, safe_logits, budget) -> token ids (B,).

    Its solver, its fused distribution and a draw from that. None if the package is not installed.
    """
    module = official_module()
    if module is None:
        return None
    factory: Any = object.__new__(module.AnchoredDecodingFactory)  # a step needs no models
    factory.solver_max_iter = NUM_NEWTON_STEPS

    def step(risky_logits: Tensor, safe_logits: Tensor, budget: Tensor) -> Tensor:
        weights = factory.solve_optimization_newton(safe_logits, risky_logits, budget)
        log_probs = factory._get_logp_from_weights(*weights)[0]
        return torch.multinomial(log_probs.exp(), 1)[:, 0]

    return step


def _cells(config: BenchKernelConfig, batch_size: int) -> tuple[str, ...]:
    risky, safe = sample_logits(config, batch_size)
    budget = torch.full((batch_size,), BUDGET_NATS)
    uniform = uniforms(torch.arange(batch_size), torch.arange(batch_size))
    official = official_step()
    # Freeing a large buffer raises malloc's threshold, after which the temporaries of the baselines
    # are recycled; in a fresh process they take twice as long. Hence this, and interleaved runs.
    buffer = torch.empty(MALLOC_WARM_UP_BYTES, dtype=torch.uint8)
    del buffer
    # The time that a single thread ran: what other processes do disturbs it least.
    clock = THREAD if config.threads == 1 else WALL
    works: dict[str, Callable[[], object]] = {
        "solve": lambda: project_kl(risky, safe, budget),
        "step": lambda: project_kl(risky, safe, budget, uniform),
        "paper": lambda: paper_projection(risky, safe, budget),
        "official": lambda: official(risky, safe, budget) if official else None,
    }
    seconds = in_turns({n: partial(_seconds, work, clock) for n, work in works.items()}, NUM_RUNS)
    ms = {name: 1e3 * median(each) for name, each in seconds.items()}
    weight = project_kl(risky, safe, budget).weight
    ours = _excess_nats(risky, safe, weight)[weight < 1.0]
    paper = _excess_nats(risky, safe, paper_projection(risky, safe, budget)[0])
    return (
        str(batch_size),
        f"{ms['paper']:.2f}",
        f"{ms['solve']:.2f}",
        *(f"{number:.1f}" for number in times_baseline(seconds["paper"], seconds["solve"])),
        f"{ms['official']:.2f}" if official else "not installed",
        f"{ms['step']:.2f}",
        *(
            (f"{number:.1f}" for number in times_baseline(seconds["official"], seconds["step"]))
            if official
            else "--"
        ),
        f"{paper.clamp_min(0.0).max().item():.1e}",
        f"{ours.clamp_min(0.0).max().item():.1e}",
        f"{(-ours).max().item():.1e}",
    )


def _charge_cells(config: BenchKernelConfig, batch_size: int) -> Iterator[tuple[str, ...]]:
    risky, safe = sample_logits(config, batch_size)
    budget = torch.full((batch_size,), BUDGET_NATS)
    uniform = uniforms(torch.arange(batch_size), torch.arange(batch_size))
    clock = THREAD if config.threads == 1 else WALL
    step = partial(project, risky, safe, budget, uniform)
    works: dict[str, Callable[[], float]] = {
        charge: partial(_seconds, partial(step, charge=charge), clock) for charge in CHARGES
    }
    seconds = in_turns(works, NUM_RUNS)
    for charge, each in seconds.items():
        ratio, error = times_baseline(each, seconds["mean"])
        yield str(batch_size), charge, f"{1e3 * median(each):.2f}", f"{ratio:.2f}", f"{error:.2f}"


def sample_logits(config: BenchKernelConfig, batch_size: int) -> tuple[Tensor, Tensor]:
    """(B, V) each, Zipf-like with noise, as next tokens are; the budget binds nearly always."""
    generator = torch.Generator().manual_seed(config.seed)
    shape = (batch_size, config.vocab_size)
    rank = torch.rand(shape, generator=generator).argsort(-1)
    base = -1.5 * torch.log(rank + 2.0)
    safe = base + 0.5 * torch.randn(shape, generator=generator)
    risky = 1.1 * base + 1.5 * torch.randn(shape, generator=generator)
    return risky, safe


def _seconds(work: Callable[[], object], clock: Clock) -> float:
    return timed(work, clock)[0]


def _excess_nats(risky: Tensor, safe: Tensor, weight: Tensor) -> Tensor:
    """float64 KL at the weight, minus the budget."""
    log_probs = reference.tilted_log_probs(risky, safe, weight)
    return reference.kl_divergence(log_probs, safe) - BUDGET_NATS
