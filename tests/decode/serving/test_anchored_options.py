"""The `anchored` object of a request, and the limits of a server."""

import pytest

import anchored
from anchored import Anchored, Pathwise
from anchored.decode.serving.anchored_options import AnchoredOptions, Limits

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
