"""All projections at the ends of what numbers hold, against an oracle in extended precision."""

import math

import long_double_distributions as oracle
import pytest
import torch
from extreme_logits import EXTREME_KINDS, extreme_budgets, extreme_pair
from logit_kinds import project_drawn

from anchored.kernels.project import project_kl, project_max
from anchored.kernels.sampler import uniforms
from anchored.kernels.spend import SPEND_QUANTUM

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

ORACLE_ERROR = 1e-12
"""Nats, next to a relative 1e-13: what float64 numbers handed to the oracle leave open."""

SIZES = [(1, 15), (3, 75), (257, 100), (5003, 20), (128_256, 2)]
PROJECTS = {"mean": project_kl, "worst": project_max, "drawn": project_drawn}


def violations(charge, risky, safe, budget, *, backend):
    """One line for every row that overspends, leaves the support, or is no distribution."""
    uniform = uniforms(torch.arange(len(budget)), torch.arange(len(budget))).to(budget.device)
    project = PROJECTS[charge]
    projection = project(risky, safe, budget, uniform, backend=backend)
    # The same numbers in float64: the same distribution, with log-probabilities in float64.
    risky, safe = risky.double(), safe.double()
    wide = project(risky, safe, budget, uniform, backend=backend)
    assert torch.equal(projection.spend, wide.spend)
    log_probs, risky, safe = (x.cpu().numpy() for x in (wide.log_probs(), risky, safe))
    for row, nats in enumerate(budget.tolist()):
        logits = risky[row], safe[row]
        for fault in faults(charge, projection, row, log_probs[row], *logits, nats):
            yield f"row {row}, budget {nats:.3g}: {fault}"


def faults(charge, projection, row, star, risky, safe, budget):
    """What is wrong with a row; star: (V,) its log-probabilities."""
    spend, is_safe_only = projection.spend[row].item(), bool(projection.is_safe_only[row])
    token_id = projection.token_ids[row].item()
    if is_safe_only and spend != 0.0:
        yield f"p_s alone spends {spend}"
    if not spend <= budget or spend % SPEND_QUANTUM:
        yield f"spend {spend}"
    # Of the distribution of the weight, or of these log-probabilities.
    if is_safe_only:
        true = 0.0
    elif charge == "mean":
        true = oracle.kl_divergence(oracle.tilted(risky, safe, projection.weight[row].item()), safe)
    elif charge == "worst":
        true = oracle.max_divergence(star, safe)
    else:
        true = float(star[token_id] - oracle.log_probs(safe)[token_id])
    if not true <= spend + ORACLE_ERROR + 1e-13 * abs(spend):
        yield f"true cost {true}, spend {spend}"
    if not abs(oracle.total_mass(star) - 1.0) < 1e-8:
        yield f"total mass {oracle.total_mass(star)}"
    if not star[token_id] > -math.inf:
        yield f"token {token_id} of probability 0 was drawn"


@pytest.mark.sampled(6)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, of lanes that are discarded
@pytest.mark.parametrize("charge", PROJECTS)
@pytest.mark.parametrize("kind", EXTREME_KINDS)
@pytest.mark.parametrize(
    ("backend", "sizes"),
    # The interpreter takes a tenth of a second for a row.
    [("torch", SIZES), ("triton", [(2, 2), (17, 4), (257, 2)])],
)
def test_no_extreme_row_overspends(backend, sizes, kind, charge):
    generator = torch.Generator().manual_seed(EXTREME_KINDS.index(kind))
    for index, (vocab_size, num_rows) in enumerate(sizes):
        dtype = (torch.float32, torch.bfloat16)[index % 2]
        logits = extreme_pair(kind, num_rows, vocab_size, generator)
        rows = (*(x.to(dtype) for x in logits), extreme_budgets(num_rows, generator))
        problems = list(violations(charge, *(x.to(DEVICE) for x in rows), backend=backend))
        assert not problems, f"{len(problems)} of {vocab_size} tokens: {problems[:5]}"


BACKENDS = ["torch", pytest.param("triton", marks=pytest.mark.slow)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, of lanes that are discarded
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("charge", PROJECTS)
def test_ratios_next_to_huge_logits_keep_their_digits(charge, backend):
    """What the difference of both models' logits would lose, were the peaks not taken off first."""
    near = torch.tensor([[0.0, -18.2, -147.0], [0.5, 0.25, -9.0], [1e-8, 0.0, -1e-8]])
    far = torch.full_like(near, -3e38)
    risky, safe = torch.cat([far, near]).to(DEVICE), torch.cat([near, far]).to(DEVICE)
    for nats in (0.5, 20.0, 300.0):
        budget = torch.full((len(risky),), nats, dtype=torch.float64, device=DEVICE)
        problems = list(violations(charge, risky, safe, budget, backend=backend))
        assert not problems, problems


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("charge", PROJECTS)
def test_a_finite_mask_bans_like_an_infinite_one(charge, backend):
    safe = torch.randn(3, 300, generator=torch.Generator().manual_seed(1))
    risky = safe + torch.randn(3, 300, generator=torch.Generator().manual_seed(2))
    budget = torch.full((3,), 3.0)
    is_masked = torch.rand(3, 300, generator=torch.Generator().manual_seed(3)) < 0.4
    spends = []
    for mask in (-math.inf, torch.finfo(torch.float32).min, -1e9, -2.0e6):
        masked = risky.masked_fill(is_masked, mask).to(DEVICE)
        arguments = (masked, safe.to(DEVICE), budget.to(DEVICE))
        projection = PROJECTS[charge](*arguments, backend=backend)
        spends.append(projection.spend.tolist())
        assert bool((projection.log_probs().cpu()[is_masked] == -math.inf).all())
    assert spends[0] == spends[1] == spends[2] == spends[3]
    assert not projection.is_safe_only.any()
