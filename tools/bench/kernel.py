"""One projection and draw against the paper's algorithm, and the charges side by side."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

import torch
from torch import Tensor

from anchored.kernels import reference
from anchored.kernels.project import project, project_kl
from anchored.kernels.projection import Charge
from anchored.kernels.sampler import uniforms

from .baselines import official_module
from .options import BenchKernelConfig
from .timing import THREAD, WALL, in_turns, print_table, ratio_cells, timed

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
    """Print two tables and return 0; in inference mode, as decoding runs."""
    torch.set_num_threads(config.threads)
    print(
        f"KL projection, V = {config.vocab_size}, float32 logits, budget {BUDGET_NATS} nats, "
        f"CPU, torch {torch.__version__}, {config.threads} thread(s), "
        f"median of {NUM_RUNS} runs, {'CPU time' if config.threads == 1 else 'elapsed time'}"
    )
    print("solve: the projection alone; step: with a token drawn; over, shortfall: nats")
    print_table(TITLES, (_row(config, size) for size in config.batch_sizes), WIDTH)
    print("\nWith a token drawn, by what the step is charged, in turns")
    rows = chain.from_iterable(_charge_rows(config, size) for size in config.batch_sizes)
    print_table(CHARGE_TITLES, rows, WIDTH)
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


def _row(config: BenchKernelConfig, batch_size: int) -> list[str]:
    """A batch size's times and errors: the paper's algorithm, ours, the authors' package."""
    risky, safe, budget, uniform = _inputs(config, batch_size)
    official = official_step()
    # Freeing a large buffer raises malloc's threshold, after which the temporaries of the baselines
    # are recycled; in a fresh process they take twice as long. Hence this, and interleaved runs.
    buffer = torch.empty(MALLOC_WARM_UP_BYTES, dtype=torch.uint8)
    del buffer
    works: dict[str, Callable[[], object]] = {
        "solve": lambda: project_kl(risky, safe, budget),
        "step": lambda: project_kl(risky, safe, budget, uniform),
        "paper": lambda: paper_projection(risky, safe, budget),
        "official": lambda: official(risky, safe, budget) if official else None,
    }
    seconds = _seconds(config, works)
    ms = {name: f"{1e3 * median(runs):.2f}" for name, runs in seconds.items()}
    weight = project_kl(risky, safe, budget).weight
    ours = _excess_nats(risky, safe, weight)[weight < 1.0]
    paper = _excess_nats(risky, safe, paper_projection(risky, safe, budget)[0])
    return [
        str(batch_size),
        ms["paper"],
        ms["solve"],
        *ratio_cells(seconds["paper"], seconds["solve"], 1),
        ms["official"] if official else "not installed",
        ms["step"],
        *(ratio_cells(seconds["official"], seconds["step"], 1) if official else "--"),
        f"{paper.clamp_min(0.0).max().item():.1e}",
        f"{ours.clamp_min(0.0).max().item():.1e}",
        f"{(-ours).max().item():.1e}",
    ]


def _charge_rows(config: BenchKernelConfig, batch_size: int) -> Iterator[list[str]]:
    step = partial(project, *_inputs(config, batch_size))
    seconds = _seconds(config, {charge: partial(step, charge=charge) for charge in CHARGES})
    for charge, runs in seconds.items():
        ratio = ratio_cells(runs, seconds["mean"])
        yield [str(batch_size), charge, f"{1e3 * median(runs):.2f}", *ratio]


def _inputs(config: BenchKernelConfig, batch_size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits of both models (B, V), budgets (B,) and uniforms of a projection with a draw."""
    rows = torch.arange(batch_size)
    budget = torch.full((batch_size,), BUDGET_NATS)
    return *sample_logits(config, batch_size), budget, uniforms(rows, rows)


def _seconds(
    config: BenchKernelConfig, works: Mapping[str, Callable[[], object]]
) -> dict[str, list[float]]:
    """Seconds of every work in each run; of a single thread those that it ran, which other
    processes disturb least."""
    clock = THREAD if config.threads == 1 else WALL
    turns = in_turns({name: partial(timed, work, clock) for name, work in works.items()}, NUM_RUNS)
    return {name: [seconds for seconds, _ in runs] for name, runs in turns.items()}


def sample_logits(config: BenchKernelConfig, batch_size: int) -> tuple[Tensor, Tensor]:
    """(B, V) each, Zipf-like with noise, as next tokens are; the budget binds nearly always."""
    generator = torch.Generator().manual_seed(0)
    shape = (batch_size, config.vocab_size)
    rank = torch.rand(shape, generator=generator).argsort(-1)
    base = -1.5 * torch.log(rank + 2.0)
    safe = base + 0.5 * torch.randn(shape, generator=generator)
    risky = 1.1 * base + 1.5 * torch.randn(shape, generator=generator)
    return risky, safe


def _excess_nats(risky: Tensor, safe: Tensor, weight: Tensor) -> Tensor:
    """float64 KL at the weight, minus the budget."""
    log_probs = reference.tilted_log_probs(risky, safe, weight)
    return reference.kl_divergence(log_probs, safe) - BUDGET_NATS
