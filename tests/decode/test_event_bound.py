"""The largest probability of an event within a budget, against many-digit arithmetic."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchored import event_bound

nats = st.one_of(st.just(0.0), st.floats(1e-9, 900.0))
log_probs = st.floats(-2000.0, -1e-6)
orders = st.floats(1.1, 64.0)


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


def renyi_divergence(prob, log_safe, order):
    """Of two coins, to 60 digits and those of their probabilities."""
    with mpmath.workdps(60 - int(log_safe)):
        q, p, a = mpmath.mpf(prob), mpmath.exp(mpmath.mpf(log_safe)), mpmath.mpf(order)
        return mpmath.log(q**a * p ** (1 - a) + (1 - q) ** a * (1 - p) ** (1 - a)) / (a - 1)


@settings(max_examples=40)
@given(nats, st.floats(-600.0, -1e-6), orders)
def test_of_a_renyi_order_nothing_above_it_is_within_and_little_below_it_is_not(K, log_safe, order):
    bound = event_bound(K, log_safe, divergence="renyi", order=order)
    assert math.exp(log_safe) <= bound <= 1.0
    if bound < 1.0:
        assert renyi_divergence(bound, log_safe, order) >= K
    # The closed form has nearly the same logarithm where it is small, and what rounds in that is
    # ten times as much at order 1.1.
    below = bound * (1.0 - 1e-8)
    if below > math.exp(log_safe) and K > 0.0:
        assert renyi_divergence(below, log_safe, order) <= K + 1e-8 + 1e-9 * -log_safe


@given(nats, st.one_of(log_probs, st.floats(-1e5, -2000.0)), orders)
def test_of_a_renyi_order_it_is_at_most_the_closed_form(K, log_safe, order):
    bound = event_bound(K, log_safe, divergence="renyi", order=order)
    with mpmath.workdps(60):
        exponent = (mpmath.mpf(K) + mpmath.mpf(log_safe)) * (mpmath.mpf(order) - 1) / order
        closed = min(mpmath.mpf(1), mpmath.exp(exponent))
    assert bound <= closed * (1 + 1e-9) + 1e-322


@given(nats, log_probs, orders, orders)
def test_a_larger_order_bounds_by_less_between_kl_and_max(K, log_safe, order, other):
    low, high = sorted([order, other])
    chain = [
        event_bound(K, log_safe),
        event_bound(K, log_safe, divergence="renyi", order=low),
        event_bound(K, log_safe, divergence="renyi", order=high),
        event_bound(K, log_safe, divergence="max"),
    ]
    for larger, smaller in itertools.pairwise(chain):
        assert smaller <= larger * (1.0 + 1e-9) + 1e-320


def test_orders_from_1_1_to_64_lead_from_near_kl_to_near_max():
    K, log_safe = 30.0, -100.0
    logs = [
        math.log(event_bound(K, log_safe, divergence="renyi", order=order)) for order in (1.1, 64.0)
    ]
    # (K - L) (order - 1) / order, less than a nat below it where one term is small.
    assert logs == pytest.approx([-70.0 / 11.0, -70.0 * 63.0 / 64.0], abs=0.5)
    assert math.log(event_bound(K, log_safe, divergence="max")) == pytest.approx(-70.0)


def test_without_a_budget_the_event_is_as_likely_as_under_the_safe_model():
    for kind in ({}, {"divergence": "renyi", "order": 1.5}, {"divergence": "max"}):
        bound = event_bound(0.0, -300.0, **kind)
        assert math.exp(-300.0) <= bound <= math.exp(-300.0) * (1.0 + 1e-11)


@given(nats, log_probs)
def test_of_the_largest_ratio_it_is_that_ratio(K, log_safe):
    with mpmath.workdps(60):
        exact = min(mpmath.mpf(1), mpmath.exp(mpmath.mpf(K) + mpmath.mpf(log_safe)))
    bound = event_bound(K, log_safe, divergence="max")
    assert exact <= bound and bound <= float(exact) * (1.0 + 1e-11) + 1e-322


def test_the_ends():
    assert event_bound(5.0, -math.inf) == 0.0
    assert event_bound(np.float32(0.0), torch.tensor(0.0)) == 1.0
    assert event_bound(math.inf, -700.0) == event_bound(0.0, 0.0) == 1.0
    assert event_bound(0.0, math.log(0.25)) == pytest.approx(0.25, rel=1e-6)
    assert event_bound(1.0, -1e6) < 2e-6  # of an event that no float64 probability can hold


@pytest.mark.parametrize(
    ("K", "log_safe", "kind", "message"),
    [
        (-1.0, -1.0, "kl", "K must be >= 0 nats, got -1.0"),
        (math.nan, -1.0, "kl", "K must be >= 0 nats, got nan"),
        ("5", -1.0, "kl", "K must be a number, got '5'"),
        (1.0, None, "kl", "safe_log_prob must be a number, got None"),
        (1.0, 0.5, "kl", "safe_log_prob must be a log-probability <= 0, got 0.5"),
        (1.0, -1.0, "tv", "divergence must be kl, renyi or max, got 'tv'"),
        (1.0, -1.0, "renyi", "divergence renyi needs an order in"),
    ],
)
def test_bad_values_are_named(K, log_safe, kind, message):
    with pytest.raises(ValueError, match=message):
        event_bound(K, log_safe, divergence=kind)


@pytest.mark.parametrize("order", [1.0, 64.5, math.nan])
def test_orders_out_of_range_are_named(order):
    with pytest.raises(ValueError, match=rf"order must be in \[1.1, 64\].*, got {order}"):
        event_bound(1.0, -1.0, divergence="renyi", order=order)
    with pytest.raises(ValueError, match="order is of divergence renyi alone, got 2"):
        event_bound(1.0, -1.0, order=2.0)
