"""Budgets of Rényi order: which orders a rule takes, what it records, and what it changes."""

import math

import pytest

from anchored import Anchored, Decoder, Ledger, event_bound, verify
from anchored.decode.rules.anchored import NoOpt
from anchored.decode.rules.registry import make_rule
from anchored.decode.serving.asked import Asked, Limits

PROMPTS = ["the keeper of", "import math"]
ORDER = {"divergence": "renyi", "order": 1.5}


@pytest.mark.parametrize("kind", [Anchored, NoOpt])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"divergence": "renyi"}, r"divergence renyi needs an order in \[1.1, 64\]"),
        ({"divergence": "renyi", "order": 1.0}, r"1 is divergence kl, infinity max\), got 1.0"),
        ({"divergence": "renyi", "order": math.inf}, r"infinity max\), got inf"),
        ({"divergence": "renyi", "order": 1.05}, "order must be in .* got 1.05"),
        ({"divergence": "renyi", "order": 65}, "order must be in .* got 65"),
        ({"divergence": "renyi", "order": math.nan}, "order must be in .* got nan"),
        ({"divergence": "renyi", "order": "2"}, "order must be a number, got '2'"),
        ({"order": 2.0}, "order is of divergence renyi alone, got 2.0 for kl"),
        (
            {"divergence": "max", "order": 2.0},
            "of divergence renyi alone, got 2.0 for max",
        ),
    ],
    ids=str,
)
def test_an_order_goes_with_its_divergence(kind, settings, message):
    with pytest.raises(ValueError, match=message):
        kind(k=1.0, **settings)


def test_a_rule_is_made_again_from_its_settings_and_older_ones_have_no_order():
    rule = Anchored(k=1.0, order=2, divergence="renyi", bank=20)
    assert rule.settings() | {"order": 2.0, "bank": 20.0} == rule.settings()
    assert make_rule(rule.name, rule.settings()) == rule
    assert "order" not in Anchored(k=1.0).settings()


def test_a_ledger_names_its_order_and_bounds_events_by_it(pair, tmp_path):
    for rule in (Anchored(k=1.0, **ORDER), Anchored(k=1.0), Anchored(k=1.0, divergence="max")):
        (result,) = Decoder(pair, rule).generate(PROMPTS[:1], max_new_tokens=8, seed=2)
        result.ledger.save(tmp_path / "ledger.jsonl", overwrite=True)
        ledger = Ledger.load(tmp_path / "ledger.jsonl")
        header = ledger.header
        assert header.rule_settings.get("order") == rule.order
        of_rule = {"divergence": rule.divergence, "order": rule.order}
        assert ledger.event_bound(-90.0) == event_bound(header.bound, -90.0, **of_rule)
        assert verify(ledger, pair)
    (greedy,) = Decoder(pair, Anchored(k=1.0)).generate(
        PROMPTS[:1], max_new_tokens=2, temperature=0.0
    )
    with pytest.raises(ValueError, match="no bound holds for a ledger that is not certified"):
        greedy.ledger.event_bound(-90.0)


def test_drafts_samples_and_batches_change_no_token(pair):
    rule = Anchored(k=0.8, bank=2.0, **ORDER)
    asked = {"max_new_tokens": 16, "seed": 4, "num_return_sequences": 2}
    plain = Decoder(pair, rule).generate(PROMPTS, **asked)
    drafted = Decoder(pair, rule, speculate=3).generate(PROMPTS, **asked)
    alone = [
        result
        for prompt in PROMPTS
        for result in Decoder(pair, rule, batch_size=1).generate(prompt, **asked)
    ]
    tokens = [result.token_ids for result in plain]
    assert tokens == [result.token_ids for result in drafted]
    assert tokens == [result.token_ids for result in alone]
    assert any(step.spend > 0.0 for step in plain[0].ledger.steps)


def test_a_continued_text_is_within_both_bounds(pair):
    decoder = Decoder(pair, Anchored(k=0.8, **ORDER))
    (first,) = decoder.generate(PROMPTS[:1], max_new_tokens=6, seed=1)
    (second,) = decoder.generate(continue_from=first, max_new_tokens=6, seed=1)
    assert second.ledger.header.prior_bound == first.ledger.header.bound
    assert verify(second.ledger, pair)
    both = second.ledger.header.prior_bound + second.ledger.header.bound
    assert second.ledger.event_bound(-50.0) == event_bound(both, -50.0, **ORDER)


def test_a_request_of_a_server_names_its_order_with_its_divergence():
    limits = Limits(rule=Anchored(k=1.0, divergence="renyi", order=2.0))
    assert limits.rule_of(Asked()).order == 2.0
    assert limits.rule_of(Asked(divergence="max")) == Anchored(k=1.0, divergence="max")
    with pytest.raises(ValueError, match="order is of divergence renyi alone"):
        Asked(order=1.5)
