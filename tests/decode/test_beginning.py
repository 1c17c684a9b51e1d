"""What an edited ledger may claim of the text that a continuation begins with."""

import dataclasses
import math

import pytest

from anchored import Anchored, Decoder, Ledger, RiskyOnly, SafeOnly
from anchored.decode.arguments import Beginning

HORIZON = 4


@pytest.fixture(scope="module")
def decoder(pair) -> Decoder:
    return Decoder(pair, Anchored(k=1.0))


@pytest.fixture(scope="module")
def ledger(decoder) -> Ledger:
    (result,) = decoder.generate("salt", max_new_tokens=HORIZON)
    assert 0.0 < result.ledger.header.bound < result.ledger.header.K
    return result.ledger


def edited(ledger: Ledger, **changes) -> Ledger:
    """With other figures of the header or, by their names, of the footer."""
    names = {field.name for field in dataclasses.fields(Ledger)}
    footer = {name: value for name, value in changes.items() if name in names}
    header = {name: value for name, value in changes.items() if name not in names}
    return dataclasses.replace(
        ledger, header=dataclasses.replace(ledger.header, **header), **footer
    )


def prior_bound(decoder: Decoder, ledger: Ledger) -> float:
    return Beginning.of(decoder.level, ledger).prior_bound


@pytest.mark.parametrize(
    "rule",
    [
        Anchored(k=0.7),
        Anchored(K=1.1),
        Anchored(K=3.1, budget="global", divergence="max"),
        Anchored(k=0.3, budget="fixed"),
        SafeOnly(),
    ],
    ids=str,
)
def test_an_honest_ledger_is_believed_whatever_its_rule(pair, rule):
    (first,) = Decoder(pair, rule).generate("salt", max_new_tokens=7)
    (later,) = Decoder(pair, rule).generate(continue_from=first, max_new_tokens=3)
    assert later.ledger.header.prior_bound == first.ledger.total_bound < math.inf


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_return_sequences": 0}, "the ledger's num_return_sequences must be >= 1, got 0"),
        ({"horizon": 0}, "the ledger's horizon must be >= 1, got 0"),
        ({"prior_bound": -5.0}, "the ledger's prior_bound must be >= 0 nats, got -5.0"),
        ({"prior_bound": math.nan}, "the ledger's prior_bound must be >= 0 nats, got nan"),
        ({"debt": math.nan}, "the ledger's debt must be >= 0 nats, got nan"),
        ({"bound": -1.0}, "the ledger's bound must be >= 0 nats, got -1.0"),
        ({"K": 0.5}, r"K must be k \* horizon, got 0.5 for 1.0 \* 4"),
        ({"horizon": 3, "K": 3.0}, "can be continued, this one has 4 of 3 steps"),
        ({"horizon": 40, "K": 40.0}, "can be continued, this one has 4 of 40 steps"),
        ({"finish_reason": "stop_string"}, "this one ended by 'stop_string'"),
        ({"fingerprints": {}}, "against another safe model"),
        ({"rule": "nobody"}, "rule must be one of"),
        ({"sampling": {"heat": 2.0}}, "unknown sampling setting 'heat': allowed are temperature"),
        ({"prompt_token_ids": [5, 320]}, r"token ids must be in \[0, 320\), got 320"),
    ],
    ids=str,
)
def test_figures_that_no_generation_has_are_refused_in_one_line(decoder, ledger, changes, message):
    with pytest.raises(ValueError, match=message):
        decoder.generate(continue_from=edited(ledger, **changes), max_new_tokens=2)


def test_a_text_that_was_cut_or_has_ended_is_not_one_that_reached_its_length(decoder, ledger):
    """Whatever the footer says, which an editor can change."""
    cut = edited(ledger, steps=ledger.steps[:3])
    with pytest.raises(ValueError, match="this one has 3 of 4 steps"):
        prior_bound(decoder, cut)
    end = dataclasses.replace(ledger.steps[-1], token_id=1)
    with pytest.raises(ValueError, match="this one holds the end symbol 1"):
        prior_bound(decoder, edited(ledger, steps=[*ledger.steps[:3], end]))


def test_a_bound_below_what_k_and_debt_give_is_recomputed(decoder, ledger):
    honest = prior_bound(decoder, ledger)
    assert honest == ledger.header.bound
    assert prior_bound(decoder, edited(ledger, bound=0.0)) == honest
    assert prior_bound(decoder, edited(ledger, bound=99.0)) == 99.0
    assert prior_bound(decoder, edited(ledger, bound=0.0, num_return_sequences=3)) == 3 * honest
    assert prior_bound(decoder, edited(ledger, prior_bound=2.0)) == 2.0 + honest


def test_what_certifies_nothing_leaves_no_bound_whatever_it_claims(decoder, ledger):
    header = ledger.header
    for changes in (
        {"certified": False},
        {"rule": RiskyOnly().name, "rule_settings": {}},
        {"sampling": {**header.sampling, "temperature": 0.0}},
    ):
        assert prior_bound(decoder, edited(ledger, **changes)) == math.inf
