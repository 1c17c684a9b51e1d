"""All projections at the ends of what numbers hold, against an oracle in extended precision."""

import math
from functools import partial

import long_double_distributions as oracle
import pytest
import torch
from extreme_logits import EXTREME_KINDS, extreme_budgets, extreme_pair

from anchored.kernels.project import project_kl, project_max, project_renyi
from anchored.kernels.sampler import uniforms
from anchored.kernels.spend import SPEND_QUANTUM

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

ORACLE_ERROR = 1e-12
"""Nats, beside a relative 1e-13: what float64 numbers handed to the oracle leave open."""

LONG_DOUBLE_ERROR = 1e-18
"""Relative, of an exponent of the oracle's: a few units of its last place."""

# 6 kinds x 5 divergences x 419 rows, and four times as many with -m slow.
SIZES = [(1, 15), (2, 75), (3, 75), (17, 125), (257, 100), (5003, 27), (128_256, 2)]
ORDERS = {"order 1.1": 1.1, "order 4": 4.0, "order 64": 64.0}
PROJECTS = {
    "kl": project_kl,
    "max": project_max,
    **{name: partial(project_renyi, order=order) for name, order in ORDERS.items()},
}


def violations(divergence, risky, safe, budget, *, backend):
    """One line for every row that overspends, leaves the support, or is no distribution."""
    uniform = uniforms(torch.arange(len(budget)), torch.arange(len(budget))).to(budget.device)
    project = PROJECTS[divergence]
    projection = project(risky, safe, budget, uniform, backend=backend)
    # The same numbers in float64: the same law, with log-probabilities in float64.
    risky, safe = risky.double(), safe.double()
    wide = project(risky, safe, budget, backend=backend)
    assert torch.equal(projection.spend, wide.spend)
    log_probs, risky, safe = (x.cpu().numpy() for x in (wide.log_probs(), risky, safe))
    for row, nats in enumerate(budget.tolist()):
        logits = risky[row], safe[row]
        for fault in faults(divergence, projection, row, log_probs[row], *logits, nats):
            yield f"row {row}, budget {nats:.3g}: {fault}"


def faults(divergence, projection, row, star, risky, safe, budget):
    """What is wrong with a row; star: (V,) its log-probabilities."""
    spend, is_safe_only = projection.spend[row].item(), bool(projection.is_safe_only[row])
    if is_safe_only and spend != 0.0:
        yield f"p_s alone spends {spend}"
    if not spend <= budget or spend % SPEND_QUANTUM:
        yield f"spend {spend}"
    # Of the law that the weight stands for, or of the log-probabilities given (max).
    error = ORACLE_ERROR + 1e-13 * spend
    if is_safe_only:
        true = 0.0
    elif divergence == "max":
        true = oracle.max_divergence(star, safe)
    else:
        tilted_log_probs = oracle.tilted(risky, safe, projection.weight[row].item())
        if divergence == "kl":
            true = oracle.kl_divergence(tilted_log_probs, safe)
        else:
            order = ORDERS[divergence]
            true = oracle.renyi_divergence(tilted_log_probs, safe, order)
            reach = abs(oracle.log_probs(safe)[tilted_log_probs > -math.inf]).max()
            error += LONG_DOUBLE_ERROR * order / (order - 1.0) * reach
    if not true <= spend + error:
        yield f"true divergence {true}, spend {spend}"
    if not abs(oracle.total_mass(star) - 1.0) < 1e-8:
        yield f"total mass {oracle.total_mass(star)}"
    if not star[projection.token_ids[row].item()] > -math.inf:
        yield f"token {projection.token_ids[row].item()} of probability 0 was drawn"


# The interpreter takes a tenth of a second for a row.
FEW_ROWS = [(2, 1), (17, 2)]
MANY_ROWS = [(1, 2), (2, 6), (17, 8), (257, 4)] * 3


@pytest.mark.sampled(5)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, of lanes that are discarded
@pytest.mark.parametrize("divergence", PROJECTS)
@pytest.mark.parametrize("kind", EXTREME_KINDS)
@pytest.mark.parametrize(
    ("backend", "sizes", "times"),
    [
        ("torch", SIZES, 1),
        pytest.param("torch", SIZES, 4, marks=pytest.mark.slow),
        ("triton", FEW_ROWS, 1),
        pytest.param("triton", MANY_ROWS, 1, marks=pytest.mark.slow),
    ],
)
def test_no_extreme_row_overspends(backend, sizes, times, kind, divergence):
    generator = torch.Generator().manual_seed(times * EXTREME_KINDS.index(kind))
    for index, (vocab_size, num_rows) in enumerate((size, times * rows) for size, rows in sizes):
        dtype = (torch.float32, torch.bfloat16)[index % 2]
        logits = extreme_pair(kind, num_rows, vocab_size, generator)
        rows = (*(x.to(dtype) for x in logits), extreme_budgets(num_rows, generator))
        problems = list(violations(divergence, *(x.to(DEVICE) for x in rows), backend=backend))
        assert not problems, f"{len(problems)} of {vocab_size} tokens: {problems[:5]}"


BACKENDS = ["torch", pytest.param("triton", marks=pytest.mark.slow)]
SLOW_HUGE = [pytest.param(huge, marks=pytest.mark.slow) for huge in (1e15, 1e30)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, of lanes that are discarded
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("divergence", PROJECTS)
@pytest.mark.parametrize("huge", [-3e38, *SLOW_HUGE])
def test_ratios_beside_huge_logits_keep_their_digits(huge, divergence, backend):
    """What the difference of both models' logits would lose, were the peaks not taken off first."""
    near = torch.tensor([[0.0, -18.2, -147.0], [0.5, 0.25, -9.0], [1e-8, 0.0, -1e-8]])
    far = torch.full_like(near, huge)
    risky, safe = torch.cat([far, near]).to(DEVICE), torch.cat([near, far]).to(DEVICE)
    for nats in (0.5, 20.0, 300.0):
        budget = torch.full((len(risky),), nats, dtype=torch.float64, device=DEVICE)
        problems = list(violations(divergence, risky, safe, budget, backend=backend))
        assert not problems, problems


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_max_is_the_same_law_on_both_backends_up_to_ten_thousand():
    generator = torch.Generator().manual_seed(9)
    shape = (8, 257)
    risky, safe = (
        (1e4 * torch.rand(8, 1, generator=generator) * x).clamp(-1e4, 1e4)
        for x in (torch.randn(shape, generator=generator) for _ in range(2))
    )
    budget = 10.0 ** torch.linspace(-3.0, 2.5, 8, dtype=torch.float64)
    by_torch = project_max(risky, safe, budget, backend="torch")
    by_triton = project_max(risky.to(DEVICE), safe.to(DEVICE), budget.to(DEVICE), backend="triton")
    assert torch.equal(by_triton.is_safe_only.cpu(), by_torch.is_safe_only)
    assert not by_torch.is_safe_only.any()
    gap = (by_triton.log_probs().cpu().exp() - by_torch.log_probs().exp()).abs()
    assert gap.max() <= 1e-6
    assert (by_triton.spend.cpu() - by_torch.spend).abs().max() <= 1e-8


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("divergence", PROJECTS)
def test_a_finite_mask_bans_like_an_infinite_one(divergence, backend):
    safe = torch.randn(3, 300, generator=torch.Generator().manual_seed(1))
    risky = safe + torch.randn(3, 300, generator=torch.Generator().manual_seed(2))
    budget = torch.full((3,), 3.0)
    is_masked = torch.rand(3, 300, generator=torch.Generator().manual_seed(3)) < 0.4
    spends = []
    for mask in (-math.inf, torch.finfo(torch.float32).min, -1e9, -2.0e6):
        masked = risky.masked_fill(is_masked, mask).to(DEVICE)
        arguments = (masked, safe.to(DEVICE), budget.to(DEVICE))
        projection = PROJECTS[divergence](*arguments, backend=backend)
        spends.append(projection.spend.tolist())
        assert bool((projection.log_probs().cpu()[is_masked] == -math.inf).all())
    assert spends[0] == spends[1] == spends[2] == spends[3]
    assert not projection.is_safe_only.any()
