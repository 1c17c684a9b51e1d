"""What drawing a token costs: never less than its log-ratio, never more than the budget."""

import math

import long_double_distributions as oracle
import numpy as np
import pytest
import torch
from logit_kinds import (
    DEVICE,
    EXTREME_KINDS,
    KINDS,
    extreme_budgets,
    project_drawn,
    random_budgets,
    random_logits,
)

from anchored.kernels import reference
from anchored.kernels.project import project
from anchored.kernels.sampler import uniforms
from anchored.kernels.spend import SPEND_QUANTUM

# Lanes whose results are discarded divide by zero, and numpy, the interpreter's engine, says so.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ORACLE_ERROR = 1e-15
"""Nats, of sums in long double and of tilts that are one number in float64."""
ORDINARY = [kind for kind in KINDS if kind != "huge"]
MOST_EXCESS = 3.0 * SPEND_QUANTUM
"""Nats that a token may cost beyond its log-ratio where logits are ordinary."""
EDGES = (0.0, SPEND_QUANTUM, 2.5e-9, 600.0, 600.0 + 1e-6, 2.0**20, math.inf)
"""Budgets at the ends of what is spent; others are random."""


def costs(projection):
    """(B, V) nats of every token, on the CPU."""
    (num_rows, vocab_size), device = projection.safe_logits.shape, projection.spend.device
    tokens = torch.arange(vocab_size, device=device)[:, None].expand(-1, num_rows)
    return torch.stack([projection.token_spend(row) for row in tokens], dim=1).cpu()


def exact_log_ratios(projection, row):
    """log p*(y)/p_s(y) of every token (V,) and log p_s, in long double: p* by its parameters."""
    logits = projection.risky_logits, projection.safe_logits
    risky, safe = (x[row].double().cpu().numpy() for x in logits)
    p_s = oracle.log_probs(safe)
    if projection.is_safe_only[row]:
        return np.where(np.isfinite(p_s), 0.0, -np.inf), p_s
    parameters = (x[row].item() for x in (projection.offset, projection.ceiling))
    star = oracle.clipped(risky, safe, *parameters)
    is_shared = np.isfinite(star)
    total = np.log(np.exp(star[is_shared]).sum())
    return np.where(is_shared, star - total - np.where(is_shared, p_s, 0.0), -np.inf), p_s


def assert_costs_cover(projection, budget):
    """In every row; returns the excess of each token that can be drawn."""
    excess = []
    for row, nats in enumerate(costs(projection).numpy()):
        ratios, p_s = exact_log_ratios(projection, row)
        can_draw = np.isfinite(ratios)
        excess += (nats - ratios)[can_draw].tolist()
        assert min(excess) >= -ORACLE_ERROR, row
        assert (nats <= budget[row].item()).all() and np.isneginf(nats[~can_draw]).all(), row
        assert not np.modf(nats[can_draw] / SPEND_QUANTUM)[0].any(), row
        assert 1.0 - np.exp(p_s[can_draw] + nats[can_draw]).sum() <= ORACLE_ERROR, row
    return excess


SIZES = [(1, 20), (2, 60), (17, 60), (257, 8)]
FEW_SIZES = [(3, 4), (17, 2)]


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("backend", "sizes"), [("torch", SIZES), ("triton", FEW_SIZES)])
@pytest.mark.parametrize("kind", [*KINDS, *EXTREME_KINDS])
def test_every_token_costs_its_log_ratio_or_more_and_fits_the_budget(kind, backend, sizes):
    generator = torch.Generator().manual_seed(31)
    for vocab_size, num_rows in sizes:
        for dtype in (torch.bfloat16, torch.float64):
            edges = torch.tensor(EDGES, dtype=torch.float64)[: num_rows // 2]
            budget = torch.cat([edges, extreme_budgets(num_rows - len(edges), generator)])
            rows = (
                x.to(DEVICE, dtype) for x in random_logits(kind, num_rows, vocab_size, generator)
            )
            assert_costs_cover(project_drawn(*rows, budget.to(DEVICE), backend=backend), budget)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ORDINARY)
def test_ordinary_tokens_cost_hardly_more_than_their_log_ratio_as_the_reference_has_it(kind):
    generator = torch.Generator().manual_seed(32)
    risky, safe = random_logits(kind, 40, 33, generator)
    budget = random_budgets(40, generator)
    projection = project_drawn(risky, safe, budget)
    assert max(assert_costs_cover(projection, budget)) <= MOST_EXCESS
    log_scale = reference.project_max(risky, safe, budget)
    star = reference.clipped_log_probs(risky, safe, budget, log_scale.nan_to_num(0.0)).exp()
    p_s = reference.log_softmax(safe)
    star = torch.where(log_scale.isnan()[:, None], p_s.exp(), star)
    torch.testing.assert_close((p_s + costs(projection)).exp(), star, rtol=0, atol=1e-8)


@pytest.mark.parametrize(("backend", "num_rows"), [("torch", 200), ("triton", 3)])
def test_the_draw_is_that_of_the_worst_charge_and_costs_what_its_token_does(backend, num_rows):
    generator = torch.Generator().manual_seed(34)
    for kind in ("masked_both", "with a spike", "far")[backend == "triton" :]:
        risky, safe = random_logits("generic" if kind == "far" else kind, num_rows, 60, generator)
        if kind == "far":
            # A scale of e^3e5: what rounding leaves of such a log-ratio is more than a quantum.
            risky[:, safe[0].argmax()] += 3e5
        budget = extreme_budgets(num_rows, generator).clamp(max=0.9)
        rows = tuple(x.to(DEVICE) for x in (risky, safe, budget))
        uniform = uniforms(torch.arange(num_rows), torch.arange(num_rows)).to(DEVICE)
        drawn, worst = (
            project(*rows, uniform, charge=charge, backend=backend) for charge in ("drawn", "worst")
        )
        for name in ("token_ids", "accepted", "weight", "offset", "ceiling", "is_safe_only"):
            assert torch.equal(getattr(drawn, name), getattr(worst, name)), (kind, name)
        # A GPU may fuse a product and a sum, and so round to the next quantum.
        gap = (drawn.token_spend(drawn.token_ids) - drawn.spend).abs().max().item()
        assert gap <= (SPEND_QUANTUM if DEVICE.type == "cuda" else 0.0)
        assert bool((drawn.spend < 0.0).any()) or backend == "triton"
        assert bool((drawn.spend <= rows[2]).all())
        # Nothing drawn: the worst token's, which is what every token costs of another charge.
        assert torch.equal(project_drawn(*rows, backend=backend).spend, worst.spend)
        assert torch.equal(worst.token_spend(drawn.token_ids), worst.spend)
