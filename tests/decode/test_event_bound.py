"""The largest probability of an event within a budget, against many-digit arithmetic."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchored import event_bound

nats = st.one_of(st.just(0.0), st.floats(1e-9, 900.0))
log_probs = st.floats(-2000.0, -1e-6)


def divergence(prob, log_safe):
    """Of two coins, to 60 digits and those of their probabilities."""
    with mpmath.workdps(60 - int(log_safe)):
        q, p = mpmath.mpf(prob), mpmath.exp(mpmath.mpf(log_safe))
        event_term = q * mpmath.log(q / p) if q > 0 else mpmath.mpf(0)
        return event_term + ((1 - q) * mpmath.log((1 - q) / (1 - p)) if q < 1 else 0)


@given(nats, log_probs)
def test_nothing_above_it_is_within_the_budget_and_little_below_it_is_not(K, log_safe):
    bound = event_bound(K, log_safe)
    assert math.exp(log_safe) <= bound <= 1.0
    if bound < 1.0:
        assert divergence(bound, log_safe) >= K
    below = bound * (1.0 - 1e-9)
    if below > math.exp(log_safe):
        assert divergence(below, log_safe) <= K + 1e-9 * (1.0 - log_safe)


@given(nats, log_probs)
def test_of_the_largest_ratio_it_is_that_ratio(K, log_safe):
    with mpmath.workdps(60):
        exact = min(mpmath.mpf(1), mpmath.exp(mpmath.mpf(K) + mpmath.mpf(log_safe)))
    bound = event_bound(K, log_safe, divergence="max")
    assert exact <= bound and bound <= float(exact) * (1.0 + 1e-11) + 1e-322
    assert bound <= event_bound(K, log_safe)  # as KL is at most the largest log-ratio


def test_the_ends():
    assert event_bound(5.0, -math.inf) == 0.0
    assert event_bound(np.float32(0.0), torch.tensor(0.0)) == 1.0
    assert event_bound(math.inf, -700.0) == event_bound(0.0, 0.0) == 1.0
    assert event_bound(0.0, math.log(0.25)) == pytest.approx(0.25, rel=1e-6)
    assert event_bound(1.0, -1e6) < 2e-6  # of an event that no float64 probability can hold
