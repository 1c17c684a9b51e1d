"""What is wrong with one request of a call fails that request alone, in one line."""

import copy

import pytest
from tiny_models import tiny_llama, train_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from anchored import RCAD, Anchored, Decoder, ModelPair

GOOD = "the keeper of the lamp"
LENGTH = {"max_new_tokens": 4}
BAD_PROMPTS = {
    "": "the prompt is empty",
    (): "the prompt is empty",
    (5, 320): r"token ids must be in \[0, 320\), got 320",
    (5, -1): r"token ids must be in \[0, 320\), got -1",
    "a \ud800": "cannot be written as UTF-8",
    "salt " * 200: "exceeds the pair's context of 128",
    None: "prompt must be a text or a list of token ids, got NoneType",
    (0.5, "a"): "prompt must be a text or a list of token ids, got list",
}


def listed(prompt):
    return list(prompt) if isinstance(prompt, tuple) else prompt


def assert_alone(results, expected, bad: int, message: str) -> None:
    """One failed in one line; the others are what they are by themselves."""
    assert [bool(result.error) for result in results] == [i == bad for i in range(len(results))]
    with pytest.raises(ValueError, match=message):
        raise ValueError(results[bad].error)
    assert "\n" not in results[bad].error
    others = [result.token_ids for i, result in enumerate(results) if i != bad]
    assert others == [result.token_ids for result in expected]


@pytest.mark.parametrize("prompt", BAD_PROMPTS, ids=repr)
def test_one_bad_prompt_fails_alone_wherever_it_stands(pair, prompt):
    message, bad = BAD_PROMPTS[prompt], listed(prompt)
    decoder = Decoder(pair, Anchored(k=1.0), batch_size=2)
    expected = decoder.generate([GOOD, "salt"], **LENGTH)
    for place in range(3):
        prompts = [GOOD, "salt"]
        prompts.insert(place, bad)
        results = decoder.generate(prompts, **LENGTH)
        assert_alone(results, expected, place, message)
        assert results[place].finish_reason == "error" and not results[place].ledger.certified
    scores = decoder.score([GOOD, bad, "salt"], [" a"] * 3)
    assert [bool(score.error) for score in scores] == [False, True, False]
    with pytest.raises(ValueError, match=message):
        decoder.generate(bad if isinstance(bad, str) else [bad], **LENGTH)


@pytest.mark.parametrize("bad", [[300], [0xE2, 0xFF], "a \ud800"], ids=repr)
def test_one_bad_text_fails_alone_at_byte_level(pair, bad):
    decoder = Decoder(pair, Anchored(k=1.0), level="byte")
    results = decoder.generate([GOOD, bad], max_new_bytes=2)
    assert [bool(result.error) for result in results] == [False, True]
    with pytest.raises(ValueError, match=r"bytes|UTF-8"):
        decoder.generate([bad] if isinstance(bad, str) else bad, max_new_bytes=2)


@pytest.mark.parametrize("bad", [[5, 999], "\ud800", None], ids=repr)
def test_one_bad_continuation_fails_alone(pair, bad):
    decoder = Decoder(pair, Anchored(k=1.0))
    scores = decoder.score([GOOD, GOOD, "salt"], [" a", bad, " and"], horizon=4)
    assert [bool(score.error) for score in scores] == [False, True, False]
    expected = decoder.score([GOOD, "salt"], [" a", " and"], horizon=4)
    assert [scored.token_log_probs for scored in scores if not scored.error] == [
        pytest.approx(scored.token_log_probs, abs=1e-9) for scored in expected
    ]
    with pytest.raises(ValueError, match=r"token ids|UTF-8|must be a text"):
        decoder.score([GOOD], [bad])


def test_one_ledger_that_cannot_go_on_fails_alone(pair):
    decoder = Decoder(pair, Anchored(k=1.0))
    first = decoder.generate([GOOD, "salt"], **LENGTH)
    (cut,) = decoder.generate(GOOD, stop=first[0].text[1], **LENGTH)
    (by_bytes,) = Decoder(pair, Anchored(k=1.0), level="byte").generate(GOOD, max_new_bytes=2)
    expected = decoder.generate(continue_from=first, **LENGTH)
    for bad, message in ((cut, "ended by 'stop_string'"), (by_bytes, "cannot go on at token")):
        results = decoder.generate(continue_from=[first[0], bad, first[1]], **LENGTH)
        assert_alone(results, expected, 1, message)
        with pytest.raises(ValueError, match=message):
            decoder.generate(continue_from=bad, **LENGTH)


def test_one_passage_that_is_none_fails_alone_and_none_at_all_is_the_calls_error(pair):
    decoder = Decoder(pair, RCAD())
    expected = decoder.generate([GOOD, "salt"], passages=["a", "b"], **LENGTH)
    for bad, message in (
        (None, "needs a passage"),
        (5, "must be text, got 5"),
        ("\ud800", "UTF"),
    ):
        results = decoder.generate([GOOD, "x", "salt"], passages=["a", bad, "b"], **LENGTH)
        assert_alone(results, expected, 1, message)
    with pytest.raises(ValueError, match="needs a passage a prompt, got none"):
        decoder.generate([GOOD, "salt"], **LENGTH)
    with pytest.raises(ValueError, match="reads no passages"):
        Decoder(pair, Anchored(k=1.0)).generate([GOOD, "salt"], passages=["a", "b"], **LENGTH)


TEMPLATE = (
    "{% set said = messages[-1].content %}"
    "{% if said == 'zero' %}{{ 1 // 0 }}{% endif %}"
    "{% if said == 'sum' %}{{ 1 + said }}{% endif %}"
    "{% if said == 'no' %}{{ raise_exception('no,\n never') }}{% endif %}"
    "{% if said != 'empty' %}{{ bos_token }}{{ said }}{% endif %}"
)
BAD_CHATS = {
    "zero": "the chat template refuses the messages: integer division",
    "sum": "the chat template refuses the messages: unsupported operand",
    "no": "the chat template refuses the messages: no, never",
    "empty": "template of the risky model makes no token",
}


@pytest.mark.parametrize("safe", [None, TEMPLATE], ids=["base", "instruct"])
def test_one_conversation_that_is_none_fails_alone(safe):
    def templated(template):
        tokenizer = copy.deepcopy(train_tokenizer())
        tokenizer.chat_template = template
        return tokenizer

    risky = TEMPLATE if safe is None else TEMPLATE + " "
    tokenizers = {"tokenizer": templated(safe), "risky_tokenizer": templated(risky)}
    decoder = Decoder(ModelPair(tiny_llama(1), tiny_llama(2), **tokenizers), Anchored(k=1.0))
    chats = [[{"role": "user", "content": text}] for text in (GOOD, "salt")]
    expected = decoder.generate(messages=chats, **LENGTH)
    bad_chats = {
        **{message: [{"role": "user", "content": text}] for text, message in BAD_CHATS.items()},
        'a message must have a "role"': [{"role": "user"}],
        "a message must have a": [{"role": "user", "content": "a"}, "b"],
        "messages must be a list of roles": [],
        "messages must be a list of roles and contents, got None": None,
        "a message's content cannot be written as UTF-8": [{"role": "user", "content": "\ud800"}],
        "a message's role cannot be written as UTF-8": [{"role": "\ud800", "content": "a"}],
    }
    for message, chat in bad_chats.items():
        if "makes no token" in message and safe is not None:
            message = r"makes no token|prompt is empty"
        results = decoder.generate(messages=[chats[0], chat, chats[1]], **LENGTH)
        assert_alone(results, expected, 1, message)
        with pytest.raises(ValueError, match=r"template|message|prompt"):
            decoder.generate(messages=chat or [chat], **LENGTH)


def test_a_word_that_the_tokenizer_lacks_fails_its_request_alone():
    """A tokenizer of words without an unknown one raises for others."""
    vocab = {"a": 319, **{f"t{i}": i for i in range(319)}}
    words = Tokenizer(models.WordLevel(vocab, unk_token="none"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="t0", eos_token="t1", clean_up_tokenization_spaces=False
    )
    decoder = Decoder(ModelPair(tiny_llama(1), tiny_llama(2), tokenizer), Anchored(k=1.0))
    expected = decoder.generate(["t5", "t6 t7"], **LENGTH)
    results = decoder.generate(["t5", "salt", "t6 t7"], **LENGTH)
    assert_alone(results, expected, 1, "the tokenizer cannot read the text: .*Missing")
    scores = decoder.score(["t5", "t5"], ["t9", "salt"])
    assert [bool(score.error) for score in scores] == [False, True]
    assert scores[0].token_ids == [9]


@pytest.mark.parametrize(
    "wrong",
    [{"k": [1.0, float("nan")]}, {"seed": [0, -1]}, {"seed": [0, 2**63]}, {"k": [1.0, "a"]}],
    ids=str,
)
def test_a_wrong_setting_of_one_is_an_error_of_the_call_before_anything_is_drawn(pair, wrong):
    with pytest.raises(ValueError, match=r"^(k|seed) must be"):
        Decoder(pair, Anchored(k=1.0)).generate_each([GOOD, "salt"], **LENGTH, **wrong)


def test_tokens_that_the_tokenizer_cannot_decode_fail_their_request_alone(pair, monkeypatch):
    """A tokenizer's decoder may be a program of its author's."""
    decoder = Decoder(pair, Anchored(k=1.0))
    expected = decoder.generate([GOOD, "salt"], **LENGTH)
    poison = expected[0].token_ids[1]
    assert poison not in expected[1].token_ids
    backend = decoder.level._decoder._backend

    class Poisoned:
        def decode(self, token_ids, **options):
            if poison in token_ids:
                raise Exception("Invalid prefix encountered")
            return backend.decode(token_ids, **options)

        id_to_token = backend.id_to_token

    monkeypatch.setattr(decoder.level._decoder, "_backend", Poisoned())
    bad, good = decoder.generate([GOOD, "salt"], **LENGTH)
    assert bad.error == (
        "request 0: the tokenizer cannot decode the tokens drawn: Invalid prefix encountered"
    )
    assert bad.token_ids == expected[0].token_ids[:2] and not bad.ledger.certified
    assert good.token_ids == expected[1].token_ids and not good.error
