"""project_max against float64: the largest log-ratio in every case, and the laws of clipping."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logit_kinds import FEW_SIZES, KINDS, SIZES

from anchored.kernels import reference
from anchored.kernels.projection import project_max
from anchored.kernels.spend import SPEND_QUANTUM

REFERENCE_ERROR = 1e-11
"""Nats; rounding of the float64 log-probabilities compared, 1e-16 times the range of the logits."""


@pytest.mark.parametrize("sizes", [FEW_SIZES, pytest.param(SIZES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_random_cases_keep_the_bound(kind, sizes, logit_pairs, budgets):
    generator = torch.Generator().manual_seed(KINDS.index(kind))
    for vocab_size, num_rows in sizes:
        for dtype in (torch.bfloat16, torch.float32):
            risky, safe = (x.to(dtype) for x in logit_pairs(kind, num_rows, vocab_size, generator))
            budget = budgets(num_rows, generator)
            projection = project_max(risky, safe, budget)
            # The same values in float64: the same law, with log-probabilities in float64.
            log_probs = project_max(risky.double(), safe.double(), budget).log_probs()
            divergence = reference.max_divergence(log_probs, safe)
            spent = torch.where(projection.is_safe_only, 0.0, divergence)
            assert bool((spent <= projection.spend + REFERENCE_ERROR).all())
            assert bool((projection.spend <= budget.clamp_min(0.0)).all())
            assert bool((projection.spend / SPEND_QUANTUM).frac().eq(0).all())
            assert log_probs.logsumexp(-1).abs().max() < 1e-9
            assert bool((log_probs[reference.log_softmax(safe) == -math.inf] == -math.inf).all())
            error = (projection.log_probs().double() - log_probs)[log_probs > math.log(1e-8)]
            assert error.abs().max() <= 1e-5


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "huge"])
def test_scale_agrees_with_bisection(kind, logit_pairs, budgets):
    generator = torch.Generator().manual_seed(1)
    risky, safe = logit_pairs(kind, 60, 33, generator)
    budget = budgets(60, generator)
    projection = project_max(risky, safe, budget)
    log_scale = reference.project_max(risky, safe, budget)
    assert torch.equal(projection.is_safe_only, log_scale.isnan())
    expected = reference.clipped_log_probs(risky, safe, budget, log_scale.nan_to_num(0.0)).exp()
    expected = torch.where(log_scale.isnan()[:, None], safe.softmax(-1), expected)
    torch.testing.assert_close(projection.log_probs().exp(), expected, rtol=0, atol=1e-8)


@given(
    kind=st.sampled_from(KINDS),
    vocab_size=st.sampled_from([1, 2, 7, 63, 64, 65, 300]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=30, deadline=None)
def test_laws_of_clipping(kind, vocab_size, seed, logit_pairs, budgets):
    generator = torch.Generator().manual_seed(seed)
    risky, safe = logit_pairs(kind, 6, vocab_size, generator)
    budget = budgets(6, generator)
    projection = project_max(risky, safe, budget)
    more = project_max(risky, safe, 2.0 * budget + 1e-3)
    assert bool((more.weight >= projection.weight - 1e-9).all())
    if kind == "huge":
        return
    order = torch.randperm(vocab_size, generator=generator)
    permuted = project_max(risky[:, order], safe[:, order], budget)
    shifted = project_max(risky + 3.0, safe - 5.0, budget)
    for other in (permuted.spend, shifted.spend):
        assert (other - projection.spend).abs().max() <= 1e-8
