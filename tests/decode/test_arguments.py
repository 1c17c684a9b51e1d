"""Samples of one prompt and continuations of earlier text: their draws, and bounds that add up."""

import math

import pytest

from anchored import Anchored, Decoder, Ledger, verify
from anchored.decode.engine.request import recorded_key

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
        assert later.ledger.total_bound == earlier.ledger.total_bound + header.bound
        assert verify(later.ledger, pair).is_ok
    (third,) = decoder.generate(continue_from=second[0].ledger, max_new_tokens=2)
    expected = third.ledger.header.bound + second[0].ledger.total_bound
    assert third.ledger.total_bound == expected


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


def test_continuing_at_byte_level_adds_bytes(pair):
    decoder = Decoder(pair, Anchored(k=0.5), level="byte")
    (first,) = decoder.generate("salt", max_new_bytes=5)
    (second,) = decoder.generate(continue_from=first, max_new_bytes=5)
    assert bytes(second.ledger.header.prompt_token_ids).startswith(b"salt")
    assert len(second.ledger.header.prompt_token_ids) == 9
    assert second.ledger.total_bound == first.ledger.header.bound + second.ledger.header.bound


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


def test_only_text_of_this_model_and_level_that_has_not_ended_goes_on(decoder, pair):
    (result,) = decoder.generate("salt", max_new_tokens=2)
    with pytest.raises(ValueError, match="a token-level ledger cannot go on at byte level"):
        Decoder(pair, Anchored(k=1.0), level="byte").generate(continue_from=result)
    result.ledger.header.fingerprints["safe"] = "0" * 64
    with pytest.raises(ValueError, match="against another safe model"):
        decoder.generate(continue_from=result, max_new_tokens=2)
    result.ledger.finish_reason = "stop_token"
    with pytest.raises(ValueError, match="this one ended by 'stop_token'"):
        decoder.generate(continue_from=result, max_new_tokens=2)
