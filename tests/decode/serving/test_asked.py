"""What a request asks for, and the limits of a server."""

import math

import pytest

import anchored
from anchored import Anchored
from anchored.decode.serving.asked import Asked, Limits, extra_arguments


@pytest.mark.parametrize(
    ("rule", "asked", "refused"),
    [
        (Anchored(k=1.0), {"divergence": "renyi", "order": 1.5}, ""),
        (Anchored(k=1.0, divergence="renyi", order=1.5), {"divergence": "renyi", "order": 2.0}, ""),
        (Anchored(k=1.0, divergence="renyi", order=1.5), {"divergence": "max"}, ""),
        (
            Anchored(k=1.0, divergence="renyi", order=1.5),
            {"divergence": "renyi", "order": 1.25},
            "1.5 .* got 1.25",
        ),
        (Anchored(k=1.0, divergence="renyi", order=1.5), {"divergence": "kl"}, "1.5 .* got 1"),
        (
            Anchored(k=1.0, divergence="max"),
            {"divergence": "renyi", "order": 64.0},
            "inf .* got 64",
        ),
    ],
)
def test_a_request_may_ask_for_a_stronger_divergence_than_the_servers_alone(rule, asked, refused):
    limits = Limits(rule=rule)
    if not refused:
        assert limits.rule_of(Asked(**asked)).k == 1.0
        return
    with pytest.raises(ValueError, match=refused):
        limits.rule_of(Asked(**asked))


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_k": -1.0},
        {"rule": anchored.Anchored(k=5.0), "max_k": 4.0},
        {"max_total": math.nan},
        {"max_horizon": 0},
    ],
    ids=str,
)
def test_limits_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValueError):
        Limits(**wrong)


def test_what_a_request_asks_for_is_read_from_its_extra_arguments():
    asked = Asked.of({"anchored_K": 5, "anchored_debt": 2.0, "anchored_k": None, "other": 1})
    assert asked == Asked(K=5, debt=2.0)
    assert Asked.of(None) == Asked()


@pytest.mark.parametrize("rule", [anchored.SafeOnly(), anchored.RiskyOnly()], ids=str)
def test_a_rule_without_a_budget_takes_none(rule):
    limits = Limits(rule=rule, max_k=1.0, max_bank=1.0)
    assert limits.rule_of(Asked()) == rule
    for asked in (Asked(k=1.0), Asked(K=1.0), Asked(bank=1.0), Asked(divergence="max")):
        with pytest.raises(ValueError, match="takes no"):
            limits.rule_of(asked)


def test_a_rule_of_one_number_takes_that_number():
    assert Limits(rule=anchored.ColdStart(k=1.0)).rule_of(Asked(k=2.0)) == anchored.ColdStart(k=2.0)
    with pytest.raises(ValueError, match="cold_start takes no K"):
        Limits(rule=anchored.ColdStart(k=1.0)).rule_of(Asked(K=2.0))


LIMITED = Limits(
    rule=anchored.Anchored(k=1.0, bank=1.0), max_k=4.0, max_total=40.0, max_bank=2.0, max_horizon=10
)


@pytest.mark.parametrize("asked", [{"k": 5.0}, {"K": 41.0}, {"bank": 3.0}])
def test_nats_beyond_the_limits_are_refused(asked):
    LIMITED.check(LIMITED.rule_of(Asked(k=4.0)).budget_for(horizon=10, k=None))
    with pytest.raises(ValueError, match="must be at most"):
        LIMITED.check(LIMITED.rule_of(Asked(**asked)).budget_for(horizon=10, k=None))
    with pytest.raises(ValueError, match="must be at most 10"):
        LIMITED.check_horizon(11)


def test_one_object_or_the_other_names_the_same():
    one = extra_arguments({"anchored": {"k": 1.0, "seed": 3}})
    other = extra_arguments({"vllm_xargs": {"anchored_k": 1.0, "anchored_seed": 3, "x": 1}})
    assert Asked.of(one) == Asked.of(other) == Asked(k=1.0, seed=3)
    with pytest.raises(ValueError, match="must be objects"):
        extra_arguments({"anchored": [1]})
