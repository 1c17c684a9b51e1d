"""A capped bank from the rule to the ledger: windows of any text, however it is decoded."""

import itertools
import math
from dataclasses import replace

import pytest
from plain_forward import assert_same

from anchored import Anchored, Decoder, Generation, Ledger, NoOpt, verify

TEXTS = ["the keeper of", "Nine tides ago", "salt", "every wave into a ledger"]
RULE = Anchored(k=2.7, bank=0.1, debt="none")
"""Of the pair's steps some need less than k and some more, about 2 to 3.5 nats."""
RULES = [
    RULE,
    Anchored(K=115.2, bank=0.0, debt="none", divergence="max"),
    NoOpt(k=2.0, bank=1.2, debt="none"),
]
PLAIN = {"max_new_tokens": 16, "temperature": 1.0}


def drawn(pair, rule, prompts=TEXTS, **options) -> list[Generation]:
    decoder = Decoder(pair, rule, batch_size=options.pop("batch_size", 16))
    return decoder.generate(prompts, **PLAIN, **options)


def assert_windows_hold(ledger: Ledger) -> None:
    spends = [step.spend for step in ledger.steps]
    for start, end in itertools.combinations(range(len(spends) + 1), 2):
        assert math.fsum(spends[start:end]) <= ledger.window_bound(end - start)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_window_of_a_text_stays_within_the_bank_and_its_steps(pair, rule):
    """And the ledgers say so, verify, and are read again."""
    ledgers = [result.ledger for result in drawn(pair, rule)]
    for ledger in ledgers:
        assert ledger.header.bank == ledger.header.rule_settings["bank"] == rule.bank
        assert ledger.certified
        assert_windows_hold(ledger)
        assert verify(ledger, pair)
    without = [result.ledger for result in drawn(pair, replace(rule, bank=None))]
    allowed, more = (
        sum(s.budget for text_ledger in some for s in text_ledger.steps)
        for some in (ledgers, without)
    )
    assert 0.0 < allowed < 0.95 * more and sum(ledger.spent for ledger in ledgers) > 0.0


def test_a_batch_whose_rows_come_and_go_draws_as_each_text_alone(pair):
    alone = [drawn(pair, RULE, [text], seed=i)[0] for i, text in enumerate(TEXTS)]
    assert_same(alone, drawn(pair, RULE, seed=range(len(TEXTS)), batch_size=3))


def test_a_score_follows_the_balance_of_the_text_that_was_drawn(pair):
    results = drawn(pair, RULE, repetition_penalty=1.0)
    decoder = Decoder(pair, RULE)
    texts = [result.token_ids for result in results]
    for result, score in zip(results, decoder.score(TEXTS, texts, horizon=16), strict=True):
        assert score.bank == RULE.bank
        assert score.spends == pytest.approx([s.spend for s in result.ledger.steps], abs=1e-6)


def test_windows_hold_over_the_seam_of_a_text_and_its_continuation(pair):
    """Each part begins with an empty bank, so nothing that the first one saved is spent later."""
    first = drawn(pair, RULE, repetition_penalty=1.0)
    for one in first:
        (second,) = Decoder(pair, RULE).generate(continue_from=one, **PLAIN)
        steps = [*one.ledger.steps, *second.ledger.steps]
        header = replace(one.ledger.header, bound=math.inf)
        both = replace(one.ledger, header=replace(header, bound=2.0**20), steps=steps)
        assert verify(second.ledger, pair)
        assert_windows_hold(both)


def test_bytes_have_a_bank_of_nats_and_windows_of_bytes(pair):
    decoder = Decoder(pair, Anchored(k=2.0, bank=0.1, debt="none"), level="byte")
    (result,) = decoder.generate(TEXTS[0], max_new_bytes=12, temperature=1.0)
    assert result.ledger.header.level == "byte" and result.ledger.spent > 0.0
    assert_windows_hold(result.ledger)
    assert verify(result.ledger, pair)


def test_the_bound_of_a_window_is_the_smaller_of_its_steps_and_the_whole(pair):
    ledger = drawn(pair, Anchored(k=0.5, bank=2.0, debt="none"), TEXTS[:1])[0].ledger
    assert [ledger.window_bound(w) for w in (1, 4, 12, 13, 400)] == [2.5, 4.0, 8.0, 8.0, 8.0]
    plain = drawn(pair, Anchored(k=0.5), TEXTS[:1])[0].ledger
    assert plain.window_bound(1) == plain.header.bound
    for w, message in ((0, "w must be >= 1, got 0"), (1.5, "w must be a whole number, got 1.5")):
        with pytest.raises(ValueError, match=message):
            ledger.window_bound(w)
    with pytest.raises(ValueError, match="no bound holds for a ledger that is not certified"):
        replace(ledger, certified=False).window_bound(3)
