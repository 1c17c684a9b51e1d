"""Samples and continuations: draws, bounds that add up, and what an edited ledger may claim."""

import dataclasses
import math

import pytest

from anchored import Anchored, Decoder, Ledger, RiskyOnly, verify
from anchored.decode.engine.request import recorded_key
from anchored.decode.settings import SamplingConfig

PROMPTS = ["the keeper of the lamp", "import math"]


@pytest.fixture(scope="module")
def decoder(pair):
    return Decoder(pair, Anchored(k=1.0))


def test_samples_of_a_prompt_differ_and_begin_with_the_one_it_gets_alone(decoder):
    several = decoder.generate(PROMPTS, max_new_tokens=8, seed=[3, 8], num_return_sequences=3)
    assert [result.ledger.header.seed for result in several] == [3, 3, 3, 8, 8, 8]
    for first, (prompt, seed) in enumerate(zip(PROMPTS, [3, 8], strict=True)):
        samples = [result.token_ids for result in several[3 * first : 3 * first + 3]]
        assert len(set(map(tuple, samples))) == 3
        for count in (1, 2):
            fewer = decoder.generate(
                prompt, max_new_tokens=8, seed=seed, num_return_sequences=count
            )
            assert [result.token_ids for result in fewer] == samples[:count]


def test_bounds_of_samples_add_up_and_the_result_says_so(decoder):
    for result in decoder.generate(PROMPTS, max_new_tokens=8, num_return_sequences=4):
        bound = result.ledger.header.bound
        assert bound > 0.0 and result.ledger.total_bound == 4 * bound
        assert f"(in total {4 * bound:.4g})" in str(result)
    (one,) = decoder.generate(PROMPTS[0], max_new_tokens=8)
    assert one.ledger.total_bound == one.ledger.header.bound and "in total" not in str(one)


def test_a_continuation_reads_the_earlier_text_and_adds_its_bound(decoder, pair):
    first = decoder.generate(PROMPTS, max_new_tokens=8, num_return_sequences=2)
    second = decoder.generate(continue_from=first, max_new_tokens=6)
    for earlier, later in zip(first, second, strict=True):
        header = later.ledger.header
        assert header.prompt_token_ids == (
            earlier.ledger.header.prompt_token_ids + earlier.token_ids
        )
        # What this one and the other sample's may spend, were there no debt of what was drawn.
        both = 2 * header.K
        assert later.ledger.total_bound == pytest.approx(earlier.ledger.total_bound + both)
        assert verify(later.ledger, pair).is_ok
    (third,) = decoder.generate(continue_from=second[0].ledger, max_new_tokens=2)
    expected = third.ledger.header.K + second[0].ledger.total_bound
    assert third.ledger.total_bound == pytest.approx(expected)


def test_a_continuation_is_drawn_by_numbers_of_its_own(decoder):
    """Those that drew the earlier text are used up; those of another text are another's."""
    first = decoder.generate(PROMPTS, max_new_tokens=8, seed=0, num_return_sequences=2)
    later = [
        result
        for seed in (0, 1)
        for result in decoder.generate(continue_from=first, max_new_tokens=2, seed=seed)
    ]
    keys = [recorded_key(result.ledger.header) for result in (*first, *later)]
    assert len(set(keys)) == 12
    again = decoder.generate(continue_from=first, max_new_tokens=2, seed=0)
    assert [recorded_key(result.ledger.header) for result in again] == keys[4:8]
    texts = [result.ledger.header.prompt_token_ids for result in later[:4]]
    given = decoder.generate(texts, max_new_tokens=2)  # the same text, as a prompt
    assert [result.token_ids for result in given] == [result.token_ids for result in later[:4]]


def test_text_that_no_bound_holds_for_leaves_no_total(decoder, tmp_path):
    (greedy,) = decoder.generate(PROMPTS[0], max_new_tokens=4, temperature=0.0)
    (later,) = decoder.generate(continue_from=greedy, max_new_tokens=4)
    assert later.ledger.certified and later.ledger.is_within_bound
    later.ledger.save(tmp_path / "ledger.jsonl")
    assert Ledger.load(tmp_path / "ledger.jsonl").total_bound == math.inf


def test_a_text_goes_on_without_a_bound_and_its_beginning_keeps_one(decoder, pair):
    (first,) = decoder.generate(PROMPTS[0], max_new_tokens=4)
    (later,) = Decoder(pair, RiskyOnly()).generate(continue_from=first, max_new_tokens=4)
    assert later.ledger.header.prior_bound == first.ledger.total_bound
    assert verify(later.ledger, pair).is_ok and not later.ledger.certified


def test_continuing_at_byte_level_adds_bytes(pair):
    decoder = Decoder(pair, Anchored(k=0.5), level="byte")
    (first,) = decoder.generate("salt", max_new_bytes=5)
    (second,) = decoder.generate(continue_from=first, max_new_bytes=5)
    assert bytes(second.ledger.header.prompt_token_ids).startswith(b"salt")
    assert len(second.ledger.header.prompt_token_ids) == 9
    expected = first.ledger.header.bound + second.ledger.header.K
    assert second.ledger.total_bound == pytest.approx(expected)


def test_samples_of_one_call_that_go_on_together_count_each_other(pair):
    decoder = Decoder(pair, Anchored(k=0.5, debt="none"))
    first = decoder.generate("the keeper", max_new_tokens=4, num_return_sequences=3)
    bounds = [result.ledger.header.bound for result in first]
    together = decoder.generate(continue_from=first, max_new_tokens=6)
    # Each sample says what holds for all that the two calls wrote: 3 B + 3 B'.
    expected = sum(bounds) + sum(result.ledger.header.bound for result in together)
    assert [result.ledger.total_bound for result in together] == [expected] * 3 == [6.0 + 9.0] * 3
    several = decoder.generate(continue_from=first, max_new_tokens=6, num_return_sequences=2)
    assert [result.ledger.total_bound for result in several] == [3 * 2.0 + 6 * 3.0] * 6
    (alone,) = decoder.generate(continue_from=first[1], max_new_tokens=6)
    assert alone.ledger.total_bound == 6.0 + 3.0
    others = decoder.generate(["the lamp", "the lamp"], max_new_tokens=4)
    apart = decoder.generate(continue_from=others, max_new_tokens=6)
    assert [result.ledger.total_bound for result in apart] == [2.0 + 3.0] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompts": "salt", "num_return_sequences": 0}, "num_return_sequences must be >= 1, got"),
        ({"prompts": "salt", "continue_from": True}, "prompts or continue_from, not both"),
        ({"continue_from": True, "max_new_tokens": 200}, "exceeds the pair's context of 128"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(decoder, arguments, message):
    (result,) = decoder.generate("salt", max_new_tokens=2)
    given = {"max_new_tokens": 2, **arguments}
    if "continue_from" in given:
        given["continue_from"] = result
    with pytest.raises(ValueError, match=message):
        decoder.generate(**given)


def test_text_of_another_level_does_not_go_on(decoder, pair):
    (result,) = decoder.generate("salt", max_new_tokens=2)
    with pytest.raises(ValueError, match="a token-level ledger cannot go on at byte level"):
        Decoder(pair, Anchored(k=1.0), level="byte").generate(continue_from=result)


HORIZON = 4


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_return_sequences": 0}, "contradicts itself: num_return_sequences must be >= 1, got"),
        ({"prior_bound": math.nan}, "prior_bound must be a number, got nan"),
        ({"bound": 0.0}, "bound 0.0 does not follow from K and debt"),
        ({"horizon": 40, "K": 40.0}, "is 'length' after 4 steps, the horizon 40"),
        ({"finish_reason": "stop_string"}, "this one ended by 'stop_string'"),
        ({"fingerprints": {}}, "against another safe model"),
        ({"sampling": SamplingConfig(temperature=0.0).as_dict()}, "certified must be False"),
        ({"chat_prompts": {"safe": [5, 6]}}, "safe cannot read something else than the prompt"),
        ({"prompt_token_ids": [5, 320]}, "does not follow from the header's prompt"),
    ],
    ids=str,
)
def test_figures_that_no_generation_has_are_refused_in_one_line(decoder, ledger, changes, message):
    with pytest.raises(ValueError, match=message):
        decoder.generate(continue_from=edited(ledger, **changes), max_new_tokens=2)


def test_a_text_that_was_cut_or_has_ended_is_not_one_that_reached_its_length(decoder, ledger):
    """Whatever header and footer say, which an editor can change."""
    with pytest.raises(ValueError, match="is 'length' after 3 steps, the horizon 4"):
        decoder.generate(continue_from=edited(ledger, steps=ledger.steps[:3]))
    end = dataclasses.replace(ledger.steps[-1], token_id=1)
    with pytest.raises(ValueError, match="this one holds the end symbol 1"):
        steps = [*ledger.steps[:3], end]
        decoder.generate(continue_from=edited(ledger, steps=steps, stop_token_ids=[9]))
