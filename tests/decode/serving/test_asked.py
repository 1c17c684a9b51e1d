"""What a request asks for, and the limits of a server."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import anchored
from anchored import Anchored, Pathwise
from anchored.decode.serving.asked import Asked, Limits, extra_arguments
from anchored.kernels.spend import SPEND_QUANTUM

KL, MAX, PATHWISE = Anchored(k=1.0), Anchored(k=1.0, divergence="max"), Pathwise(k=1.0, bank=20.0)


@pytest.mark.parametrize(
    ("rule", "asked", "made"),
    [
        (KL, {"divergence": "max"}, MAX),
        (KL, {"k": 0.5, "bank": 3.0}, Anchored(k=0.5, bank=3.0)),
        (Anchored(K=9.0, bank=3.0), {"k": 0.5}, Anchored(k=0.5, bank=3.0)),
        (MAX, {"K": 9.0}, Anchored(K=9.0, divergence="max")),
        (PATHWISE, {}, PATHWISE),
        (PATHWISE, {"k": 2.0, "bank": 3.0}, Pathwise(k=2.0, bank=3.0)),
        (PATHWISE, {"K": 9.0}, Pathwise(k=0.0, bank=9.0)),
    ],
    ids=str,
)
def test_a_request_changes_numbers_of_the_rule_and_asks_for_a_stronger_divergence(
    rule, asked, made
):
    assert Limits(rule=rule).rule_of(Asked(**asked)) == made


@pytest.mark.parametrize(
    ("rule", "asked", "refused"),
    [
        (MAX, {"divergence": "kl"}, "bounds hold for every text, .* kl for a mean alone"),
        (PATHWISE, {"divergence": "kl"}, "the rule pathwise takes no divergence, got 'kl'"),
        (PATHWISE, {"divergence": "max"}, "the rule pathwise takes no divergence, got 'max'"),
        (PATHWISE, {"K": 9.0, "bank": 9.0}, "K is the bank of the rule pathwise: name one alone"),
        (KL, {"bank": 2.0**21}, "bank must be in"),
        (KL, {"K": 1.0, "k": 1.0}, "either k or K"),
    ],
    ids=str,
)
def test_a_request_never_asks_for_a_weaker_bound_than_the_servers(rule, asked, refused):
    with pytest.raises(ValueError, match=refused) as error:
        Limits(rule=rule).rule_of(Asked(**asked))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rule", "left", "made"),
    [
        (KL, 30.0, Anchored(K=30.0)),
        (KL, 100.0, Anchored(K=40.0)),  # within max_total
        (PATHWISE, 30.0, PATHWISE),
        (PATHWISE, 25.0, Pathwise(k=0.5 - SPEND_QUANTUM, bank=20.0)),
        (PATHWISE, 20.0, Pathwise(k=0.0, bank=20.0)),
        (PATHWISE, 0.1, Pathwise(k=0.0, bank=0.1)),
        (PATHWISE, 0.0, Pathwise(k=0.0, bank=0.0)),
        (Pathwise(k=4.0, bank=20.0), 60.0, Pathwise(k=2.0 - SPEND_QUANTUM, bank=20.0)),
        (Anchored(K=80.0, bank=20.0), 25.0, Anchored(k=0.5 - SPEND_QUANTUM, bank=20.0)),
    ],
    ids=str,
)
def test_all_that_is_left_is_a_budget_within_it(rule, left, made):
    limits = Limits(rule=rule, max_k=4.0, max_total=40.0)
    rule = limits.rule_within(Asked(K="available"), left, 10)
    assert rule == made
    assert rule.budget_for(horizon=10, k=None).total <= left


@given(left=st.floats(0.0, 2000.0), bank=st.floats(0.0, 100.0), horizon=st.integers(1, 5000))
@example(left=120.82050399715081, bank=20.0, horizon=268)  # 20 + 268 * (left - 20) / 268 > left
def test_a_bank_and_a_k_that_share_what_is_left_are_never_rounded_above_it(left, bank, horizon):
    left = math.floor(left / SPEND_QUANTUM) * SPEND_QUANTUM  # as accounts have it
    limits = Limits(rule=Pathwise(k=1.0, bank=bank))
    rule = limits.rule_within(Asked(K="available"), left, horizon)
    total = rule.budget_for(horizon=horizon, k=None).total
    assert total <= left
    assert total >= min(left, bank + horizon) - 2 * horizon * SPEND_QUANTUM


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_k": -1.0},
        {"rule": anchored.Anchored(k=5.0), "max_k": 4.0},
        {"rule": Pathwise(bank=5.0), "max_bank": 4.0},
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


MOST = {"max_k": 4.0, "max_total": 40.0, "max_bank": 2.0, "max_horizon": 10}


@pytest.mark.parametrize(
    ("rule", "asked", "said"),
    [
        (Anchored(k=1.0, bank=1.0), {"k": 4.5}, "k must be at most 4 nats here, got 4.5"),
        (Anchored(k=1.0, bank=1.0), {"K": 41.0}, "k .* must be at most 40 nats here, got 41"),
        (Anchored(k=1.0, bank=1.0), {"bank": 3.0}, "bank must be at most 2 nats here, got 3"),
        (Pathwise(k=1.0, bank=1.0), {"K": 3.0}, "bank must be at most 2 nats here, got 3"),
        (
            Pathwise(k=1.0, bank=1.0),
            {"k": 4.0},
            r"K = bank \+ k \* max_tokens must be at most 40 nats here, got 41",
        ),
    ],
    ids=str,
)
def test_nats_beyond_the_limits_are_refused(rule, asked, said):
    limits = Limits(rule=rule, **MOST)
    limits.check(limits.rule_of(Asked(k=3.9)).budget_for(horizon=10, k=None))
    with pytest.raises(ValueError, match=said):
        limits.check(limits.rule_of(Asked(**asked)).budget_for(horizon=10, k=None))
    with pytest.raises(ValueError, match="must be at most 10"):
        limits.check_horizon(11)


def test_one_object_or_the_other_names_the_same():
    one = extra_arguments({"anchored": {"k": 1.0, "seed": 3}})
    other = extra_arguments({"vllm_xargs": {"anchored_k": 1.0, "anchored_seed": 3, "x": 1}})
    assert Asked.of(one) == Asked.of(other) == Asked(k=1.0, seed=3)
    with pytest.raises(ValueError, match="must be objects"):
        extra_arguments({"anchored": [1]})
