"""Both projections at the ends of what numbers hold, against an oracle in extended precision.

Charges of drawn tokens: test_drawn_spend.py.
"""

import math

import long_double_distributions as oracle
import pytest
import torch
import triton
import triton.language as tl
from logit_kinds import DEVICE, EXTREME_KINDS, extreme_budgets, random_logits

from anchored.kernels.gpu.layout import weights
from anchored.kernels.project import project_kl, project_max
from anchored.kernels.sampler import uniforms
from anchored.kernels.spend import SPEND_QUANTUM

# Lanes whose results are discarded divide by zero, and numpy, the interpreter's engine, says so.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ORACLE_ERROR = 1e-12
"""Nats, next to a relative 1e-13: what float64 numbers handed to the oracle leave open."""

SIZES = [(1, 15), (3, 75), (257, 100), (5003, 20), (128_256, 2)]
PROJECTS = {"mean": project_kl, "worst": project_max}


def assert_feasible(charge, risky, safe, budget, *, backend):
    """No row overspends or leaves the support, and all are distributions."""
    uniform = uniforms(torch.arange(len(budget)), torch.arange(len(budget))).to(budget.device)
    project = PROJECTS[charge]
    projection = project(risky, safe, budget, uniform, backend=backend)
    # The same numbers in float64: the same distribution, with log-probabilities in float64.
    risky, safe = risky.double(), safe.double()
    wide = project(risky, safe, budget, uniform, backend=backend)
    assert torch.equal(projection.spend, wide.spend)
    log_probs, risky, safe = (x.cpu().numpy() for x in (wide.log_probs(), risky, safe))
    spends, token_ids = projection.spend.tolist(), projection.token_ids.tolist()
    for row, nats in enumerate(budget.tolist()):
        spend, star = spends[row], log_probs[row]
        assert spend <= nats and spend % SPEND_QUANTUM == 0.0, (row, nats)
        # Of the distribution of the weight, or of these log-probabilities.
        if projection.is_safe_only[row]:
            true = 0.0
            assert spend == 0.0, row
        elif charge == "mean":
            tilted = oracle.tilted(risky[row], safe[row], projection.weight[row].item())
            true = oracle.kl_divergence(tilted, safe[row])
        else:
            true = oracle.max_divergence(star, safe[row])
        assert true <= spend + ORACLE_ERROR + 1e-13 * abs(spend), (row, nats)
        assert abs(oracle.total_mass(star) - 1.0) < 1e-8, (row, nats)
        assert star[token_ids[row]] > -math.inf, (row, nats)


@pytest.mark.sampled(5)
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
        logits = random_logits(kind, num_rows, vocab_size, generator)
        rows = (*(x.to(dtype) for x in logits), extreme_budgets(num_rows, generator))
        assert_feasible(charge, *(x.to(DEVICE) for x in rows), backend=backend)


@triton.jit
def powers_kernel(bits_ptr, powers_ptr, SIZE: tl.constexpr):
    places = tl.arange(0, SIZE)
    bits = tl.load(bits_ptr + places)
    tl.store(powers_ptr + places, weights(bits, bits < 1000.0))


def test_powers_of_two_are_as_exact_as_the_certificate_counts_on():
    bits = 1010.0 * torch.rand(4096, generator=torch.Generator().manual_seed(1)).double().neg()
    bits[:4] = torch.tensor([0.0, -torch.inf, torch.nan, -0.5])
    bits = bits.to(DEVICE)
    powers = torch.empty_like(bits)
    powers_kernel[(1,)](bits, powers, SIZE=len(bits), num_warps=1)
    expected = torch.where(bits > -1000.0, bits.exp2(), 0.0)
    assert powers[:3].tolist() == [1.0, 0.0, 0.0]
    error = (powers - expected).abs()
    assert bool((error <= 2e-14 * expected).all())
    assert bool((powers[expected == 0.0] == 0.0).all())
