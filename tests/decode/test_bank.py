"""A bank from the rule to the ledger: windows of any text, however it is decoded."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from anchored import Anchored, Decoder, Ledger, NoOpt, Pathwise, verify, with_divergences
from anchored.decode.ledger import most_spent

TEXTS = ["the keeper of", "Nine tides ago", "salt", "every wave into a ledger"]
RULE = Anchored(k=2.7, bank=0.1, debt="none")
"""Of the pair's steps some need less than k and some more, about 2 to 3.5 nats."""
PATHWISE = Pathwise(k=0.5, bank=3.0, debt="none")
RULES = [
    RULE,
    Anchored(k=7.2, bank=0.0, debt="none", divergence="max"),
    NoOpt(k=2.0, bank=1.2, debt="none"),
    PATHWISE,
]
WARPED = {"temperature": 1.0, "repetition_penalty": 1.0}
PLAIN = {"max_new_tokens": 16, **WARPED}


def assert_windows_hold(ledger: Ledger) -> None:
    spends = [step.spend for step in ledger.steps]
    for start, end in itertools.combinations(range(len(spends) + 1), 2):
        assert math.fsum(spends[start:end]) <= ledger.window_bound(end - start)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_text_goes_on_with_the_bucket_as_it_was(pair, rule):
    """A text in pieces may spend what it might at once, and has its bounds over every seam: no
    window of it spends more than the bank and its steps."""
    decoder, lengths, gives_back = Decoder(pair, rule), (5, 6, 5), False
    for text in TEXTS[:2]:
        (result,) = decoder.generate(text, **PLAIN | {"max_new_tokens": lengths[0]})
        ledgers = [result.ledger]
        assert result.ledger.header.bank == rule.bank and verify(result.ledger, pair)
        for length in lengths[1:]:
            if result.finish_reason != "length":
                break
            (result,) = decoder.generate(continue_from=result, **PLAIN | {"max_new_tokens": length})
            assert verify(result.ledger, pair)
            ledgers.append(result.ledger)
        # 1. Of all pieces together the last one says what holds.
        steps = [step for ledger in ledgers for step in ledger.steps]
        budget = rule.budget_for(horizon=sum(lengths[: len(ledgers)]), k=None)
        assert ledgers[-1].total_bound == pytest.approx(budget.bound, abs=1e-8)
        assert most_spent(steps) <= ledgers[-1].total_bound
        header = replace(ledgers[0].header, bound=budget.bound)
        assert_windows_hold(replace(ledgers[0], header=header, steps=steps))
        # 2. Each step may spend what it might if the text were written at once.
        at_once = [*budget.allowances(step.spend for step in steps)]
        assert [step.budget for step in steps] == pytest.approx(at_once, abs=1e-8)
        (score,) = decoder.score(
            text, [step.token_id for step in steps], horizon=budget.horizon, **WARPED
        )
        assert score.spends == pytest.approx([step.spend for step in steps], abs=1e-6)
        gives_back |= min(score.spends) < 0.0
    assert gives_back == (rule.charge == "drawn")


def test_what_is_missing_in_a_bank_is_a_debt_that_the_next_prompt_may_only_raise(pair):
    decoder = Decoder(pair, Pathwise(k=0.1, bank=2.0))
    (first,) = decoder.generate(TEXTS[3], **PLAIN | {"max_new_tokens": 6})
    (second,) = decoder.generate(continue_from=first, **PLAIN)
    budget = decoder.rule.budget_for(horizon=6, k=None)
    left = replace(budget, debt=first.ledger.header.debt).left_in_bank(
        [step.spend for step in first.ledger.steps]
    )
    assert second.ledger.header.least_debt == 2.0 - left > 0.0
    of_prompt = with_divergences(second.ledger, pair).header.prompt_ratios
    expected = max(2.0 - left, decoder.rule.debt_for(torch.tensor(of_prompt, dtype=torch.float64)))
    assert second.ledger.header.debt == pytest.approx(expected, abs=1e-9)
    spent = first.ledger.spent + second.ledger.spent
    assert spent <= second.ledger.header.bound + first.ledger.header.bound
    expected = first.ledger.header.bound + 0.1 * 16  # whatever was drawn, and its debt
    assert second.ledger.total_bound == pytest.approx(expected, abs=1e-9)


def test_a_text_goes_on_by_the_charge_that_it_began_with(pair):
    (first,) = Decoder(pair, RULE).generate(TEXTS[0], max_new_tokens=2)
    (greedy,) = Decoder(pair, RULE).generate(TEXTS[0], max_new_tokens=2, temperature=0.0)
    for other in (Anchored(k=1.0, divergence="max"), Pathwise()):
        decoder = Decoder(pair, other)
        message = f"charged the mean log-ratio of each step, and .* charges the {other.charge}"
        with pytest.raises(ValueError, match=message):
            decoder.generate(continue_from=first, max_new_tokens=2)
        (second,) = decoder.generate(continue_from=greedy, max_new_tokens=2)
        assert second.ledger.certified and second.ledger.total_bound == math.inf


def test_the_bound_of_a_window_is_the_smaller_of_its_steps_and_the_whole(pair):
    banked, plain = (
        Decoder(pair, Anchored(k=0.5, bank=bank, debt="none")).generate(TEXTS[0], **PLAIN)[0].ledger
        for bank in (2.0, None)
    )
    assert [banked.window_bound(w) for w in (1, 4, 16, 400)] == [2.5, 4.0, 10.0, 10.0]
    assert plain.window_bound(1) == plain.header.bound
    with pytest.raises(ValueError, match="w must be >= 1, got 0"):
        banked.window_bound(0)
    with pytest.raises(ValueError, match="no bound holds for a ledger that is not certified"):
        replace(banked, certified=False).window_bound(3)
