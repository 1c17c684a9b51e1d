"""The `anchored` object of a request, and the limits of a server."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import anchored
from anchored import Anchored, Pathwise
from anchored.decode.serving.anchored_options import AnchoredOptions, Limits
from anchored.kernels.spend import SPEND_QUANTUM

KL, MAX, PATHWISE = Anchored(k=1.0), Anchored(k=1.0, divergence="max"), Pathwise(k=1.0, bank=20.0)


@pytest.mark.parametrize(
    ("rule", "options", "made"),
    [
        (KL, {"divergence": "max"}, MAX),
        (Anchored(K=9.0, bank=3.0), {"k": 0.5}, Anchored(k=0.5, bank=3.0)),
        (PATHWISE, {"k": 2.0, "bank": 3.0}, Pathwise(k=2.0, bank=3.0)),
        (PATHWISE, {"K": 9.0}, Pathwise(k=0.0, bank=9.0)),
    ],
    ids=str,
)
def test_a_request_changes_numbers_of_the_rule_and_takes_a_stronger_divergence(rule, options, made):
    assert Limits(rule=rule).rule_of(AnchoredOptions(**options)) == made


@pytest.mark.parametrize(
    ("rule", "options", "refused"),
    [
        (MAX, {"divergence": "kl"}, "bounds hold for every text, .* kl for a mean alone"),
        (PATHWISE, {"divergence": "kl"}, "the rule pathwise takes no divergence, got 'kl'"),
        (PATHWISE, {"K": 9.0, "bank": 9.0}, "K is the bank of the rule pathwise: name one alone"),
        (KL, {"K": 1.0, "k": 1.0}, "either k or K"),
        (anchored.SafeOnly(), {"bank": 1.0}, "takes no bank"),
    ],
    ids=str,
)
def test_a_request_has_no_weaker_bound_than_the_servers_and_none_that_its_rule_lacks(
    rule, options, refused
):
    with pytest.raises(ValueError, match=refused) as error:
        Limits(rule=rule).rule_of(AnchoredOptions(**options))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rule", "left", "made"),
    [
        (KL, 30.0, Anchored(K=30.0)),
        (KL, 100.0, Anchored(K=40.0)),  # within max_total
        (PATHWISE, 30.0, PATHWISE),
        (PATHWISE, 25.0, Pathwise(k=0.5 - SPEND_QUANTUM, bank=20.0)),
        (PATHWISE, 0.0, Pathwise(k=0.0, bank=0.0)),
        (Anchored(K=80.0, bank=20.0), 25.0, Anchored(k=0.5 - SPEND_QUANTUM, bank=20.0)),
    ],
    ids=str,
)
def test_all_that_is_left_is_a_budget_within_it(rule, left, made):
    limits = Limits(rule=rule, max_k=4.0, max_total=40.0)
    rule = limits.rule_within(AnchoredOptions(K="available"), left, 10)
    assert rule == made
    assert rule.budget_for(horizon=10, k=None).total <= left


@given(left=st.floats(0.0, 2000.0), bank=st.floats(0.0, 100.0), horizon=st.integers(1, 5000))
@example(left=120.82050399715081, bank=20.0, horizon=268)  # 20 + 268 * (left - 20) / 268 > left
@settings(max_examples=40, deadline=None)
def test_a_bank_and_a_k_that_share_what_is_left_are_never_rounded_above_it(left, bank, horizon):
    left = math.floor(left / SPEND_QUANTUM) * SPEND_QUANTUM  # as accounts have it
    limits = Limits(rule=Pathwise(k=1.0, bank=bank))
    rule = limits.rule_within(AnchoredOptions(K="available"), left, horizon)
    total = rule.budget_for(horizon=horizon, k=None).total
    assert total <= left
    assert total >= min(left, bank + horizon) - 2 * horizon * SPEND_QUANTUM


@pytest.mark.parametrize(
    ("rule", "options", "said"),
    [
        (Anchored(k=1.0, bank=1.0), {"k": 4.5}, "k must be at most 4 nats here, got 4.5"),
        (Anchored(k=1.0, bank=1.0), {"K": 41.0}, "k .* must be at most 40 nats here, got 41"),
        (Pathwise(k=1.0, bank=1.0), {"K": 3.0}, "bank must be at most 2 nats here, got 3"),
        (Pathwise(k=1.0, bank=1.0), {"k": 4.0}, r"K = bank \+ k \* max_tokens .* 40 .* got 41"),
    ],
    ids=str,
)
def test_nats_beyond_the_limits_are_refused(rule, options, said):
    limits = Limits(rule=rule, max_k=4.0, max_total=40.0, max_bank=2.0, max_horizon=10)
    limits.check(limits.rule_of(AnchoredOptions(k=3.9)).budget_for(horizon=10, k=None))
    with pytest.raises(ValueError, match=said):
        limits.check(limits.rule_of(AnchoredOptions(**options)).budget_for(horizon=10, k=None))
    with pytest.raises(ValueError, match="must be at most 10"):
        limits.check_horizon(11)
    for wrong in ({"max_k": -1.0}, {"rule": Anchored(k=5.0), "max_k": 4.0}, {"max_horizon": 0}):
        with pytest.raises(ValueError):
            Limits(**wrong)


def test_null_names_no_option_and_what_is_unknown_is_refused():
    named = AnchoredOptions.of({"anchored": {"k": 1.0, "seed": 3, "K": None}})
    assert named == AnchoredOptions(k=1.0, seed=3)
    assert AnchoredOptions.of({}) == AnchoredOptions()
    for wrong, said in (({"anchored": [1]}, "must be an object"), ({"anchored": {"kk": 1}}, "kk")):
        with pytest.raises(ValueError, match=said):
            AnchoredOptions.of(wrong)
