"""Arguments of calls in the forms that users have, and continuations of edited ledgers."""

import copy
import dataclasses

import numpy as np
import pytest
import torch

from anchored import Anchored, Decoder, Ledger, Pathwise, verify
from anchored.decode.engine.request import recorded_key

PROMPTS = ["the keeper of the lamp", "import math"]
SHORT = {"max_new_tokens": 4}


@pytest.fixture(scope="module")
def decoder(pair):
    return Decoder(pair, Anchored(k=1.0))


def token_ids(results) -> list[list[int]]:
    return [result.token_ids for result in results]


def test_none_is_the_default_of_every_value(pair, decoder):
    names = ("temperature", "repetition_penalty", "top_k", "k")
    none = Decoder(pair, Anchored(k=1.0), level=None, batch_size=None, speculate=None)
    options = dict.fromkeys((*names, "seed", "stop", "max_new_bytes", "num_return_sequences"))
    expected = decoder.generate(PROMPTS[0], **SHORT)[0].ledger
    assert none.generate(PROMPTS[0], **options, **SHORT)[0].ledger == expected
    scores = none.score("a", " rain", horizon=None, **dict.fromkeys(names))
    assert scores == decoder.score("a", " rain")
    several = none.generate([PROMPTS[0]] * 2, max_new_tokens=2, seed=[None, 3])
    assert [result.ledger.header.seed for result in several] == [0, 3]


def test_numbers_of_numpy_and_torch_are_recorded_as_plain_ones(pair, tmp_path):
    decoder = Decoder(pair, Pathwise(k=np.float32(0.5), bank=np.int64(3)))
    options = {"temperature": torch.tensor(0.5), "top_k": np.int64(10), "k": [0.25, np.float64(1)]}
    results = decoder.generate([[np.int64(5)], "a"], seed=np.array([3, 4]), **options, **SHORT)
    for result in results:
        result.ledger.save(tmp_path / "ledger.jsonl")
        assert verify(Ledger.load(tmp_path / "ledger.jsonl"), pair)


def test_ids_are_prompts_in_whatever_a_tokenizer_returns_them(decoder, pair):
    tokenizer = copy.deepcopy(pair.tokenizer)
    tokenizer.pad_token = tokenizer.eos_token
    expected = token_ids(decoder.generate(PROMPTS, **SHORT))
    for kind in (None, "pt", "np"):
        padded = tokenizer(PROMPTS, return_tensors=kind, padding=kind is not None)
        one = tokenizer(PROMPTS[0], return_tensors=kind)
        assert token_ids(decoder.generate(padded, **SHORT)) == expected
        assert token_ids(decoder.generate(one["input_ids"], **SHORT)) == expected[:1]
    ids = torch.tensor(tokenizer(PROMPTS[0])["input_ids"])
    assert token_ids(decoder.generate([ids], **SHORT)) == expected[:1]
    (score,) = decoder.score(ids.numpy(), ids)
    assert score.token_ids == ids.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heat": 2}, "unknown sampling setting 'heat': allowed are temperature"),
        ({"prompts": [5.0, 7.0]}, "a token id must be a whole number, got 5.0"),
        ({"prompts": torch.tensor(5)}, "prompts must be a text, a list of token ids or a list of"),
        ({"prompts": [b"salt"]}, "prompt must be a text or a list of token ids, got bytes"),
        ({"prompts": [{"role": "user"}]}, "give conversations as messages=, not as prompts"),
        ({"prompts": (), "continue_from": "a"}, "continue_from must be .*, got 'a'"),
        ({"seed": True}, "seed must be a whole number, got True"),
        ({"seed": [1, 2]}, "seed must be one value or one per prompt: 1, got 2"),
        ({"stop": [5]}, r"stop\[0\] must be text, got 5"),
        ({"stop": ""}, "stop must not hold an empty string"),
        ({"max_new_tokens": 0}, "max_new_tokens must be >= 1, got 0"),
    ],
    ids=str,
)
def test_a_wrong_value_is_refused_before_anything_runs(decoder, options, message):
    with pytest.raises(ValueError, match=message):
        decoder.generate_each(**{"prompts": "salt", "max_new_tokens": 5, **options})


def test_a_stream_is_of_one_prompt_and_an_empty_list_has_no_results(decoder):
    for prompt, count in ((None, 0), (["a", "b"], 2)):
        with pytest.raises(ValueError, match=f"one continuation of one prompt, got {count}"):
            decoder.stream(prompt)
    assert decoder.generate([]) == []


def test_a_continuation_reads_the_earlier_text_and_adds_its_bound(decoder, pair):
    first = decoder.generate(PROMPTS, num_return_sequences=2, **SHORT)
    second = decoder.generate(continue_from=first, **SHORT)
    for earlier, later in zip(first, second, strict=True):
        header = later.ledger.header
        assert header.prompt_token_ids == earlier.prompt + earlier.token_ids
        # What this one and the other sample's may spend, were there no debt of what was drawn.
        both = 2 * header.K
        assert later.ledger.total_bound == pytest.approx(earlier.ledger.total_bound + both)
        assert verify(later.ledger, pair).is_ok
    # Numbers that drew the earlier text are used up; those of another seed are others.
    again = decoder.generate(continue_from=first, seed=1, **SHORT)
    keys = [recorded_key(result.ledger.header) for result in (*first, *second, *again)]
    assert len(set(keys)) == 12


def test_samples_of_one_call_that_go_on_together_count_each_other(pair):
    decoder = Decoder(pair, Anchored(k=0.5, debt="none"))
    first = decoder.generate("the keeper", num_return_sequences=3, **SHORT)
    together = decoder.generate(continue_from=first, max_new_tokens=6)
    # Each sample says what holds for all that the two calls wrote: 3 B + 3 B'.
    assert [result.ledger.total_bound for result in together] == [6.0 + 9.0] * 3
    several = decoder.generate(continue_from=first, max_new_tokens=6, num_return_sequences=2)
    assert [result.ledger.total_bound for result in several] == [3 * 2.0 + 6 * 3.0] * 6
    (alone,) = decoder.generate(continue_from=first[1], max_new_tokens=6)
    assert alone.ledger.total_bound == 6.0 + 3.0


def test_continuing_at_byte_level_adds_bytes(pair, decoder):
    by_bytes = Decoder(pair, Anchored(k=0.5), level="byte")
    (first,) = by_bytes.generate("salt", max_new_bytes=5)
    (second,) = by_bytes.generate(continue_from=first, max_new_bytes=5)
    header = second.ledger.header
    assert bytes(header.prompt_token_ids).startswith(b"salt") and len(header.prompt_token_ids) == 9
    assert second.ledger.total_bound == pytest.approx(first.ledger.header.bound + header.K)
    with pytest.raises(ValueError, match="a byte-level ledger cannot go on at token level"):
        decoder.generate(continue_from=first)


def ended(steps):
    """The last token is an end of text."""
    return [*steps[:-1], dataclasses.replace(steps[-1], token_id=1)]


@pytest.mark.parametrize(
    ("header", "edit", "message"),
    [
        ({"bound": 0.0}, list, "contradicts itself: bound 0.0 does not follow from K and debt"),
        ({"prompt_token_ids": [5, 320]}, list, "does not follow from the header's prompt"),
        ({"fingerprints": {}}, list, "against another safe model"),
        ({}, lambda steps: steps[:3], "is 'length' after 3 steps, the horizon 4"),
        ({"stop_token_ids": [9]}, ended, "this one holds the end symbol 1"),
    ],
)
def test_figures_that_no_text_of_full_length_has_are_refused(decoder, header, edit, message):
    (result,) = decoder.generate("salt", **SHORT)
    changed = dataclasses.replace(result.ledger.header, **header)
    edited = dataclasses.replace(result.ledger, header=changed, steps=edit(result.ledger.steps))
    with pytest.raises(ValueError, match=message):
        decoder.generate(continue_from=edited, **SHORT)
