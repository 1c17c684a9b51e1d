"""An error of one request of a call fails that request alone, in one line."""

import pytest
from tiny_models import tiny_llama, train_tokenizer, word_tokenizer
from tokenizers import decoders

from anchored import RCAD, Anchored, Decoder, ModelPair

GOOD = "the keeper of the lamp"
LENGTH = {"max_new_tokens": 4}


@pytest.fixture(scope="module")
def decoder(pair) -> Decoder:
    return Decoder(pair, Anchored(k=1.0), batch_size=2)


def assert_alone(results, expected, bad: int, message: str) -> None:
    """One failed in one line; the others are what they are by themselves."""
    assert [bool(result.error) for result in results] == [i == bad for i in range(len(results))]
    with pytest.raises(ValueError, match=message):
        raise ValueError(results[bad].error)
    assert "\n" not in results[bad].error and not results[bad].ledger.certified
    others = [result.token_ids for i, result in enumerate(results) if i != bad]
    assert others == [result.token_ids for result in expected]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("", "the prompt is empty"),
        ([5, 320], r"token ids must be in \[0, 320\), got 320"),
        ("a \ud800", "cannot be written as UTF-8"),
        ("salt " * 200, "exceeds the pair's context of 128"),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_one_bad_prompt_fails_alone(decoder, bad, message):
    expected = decoder.generate([GOOD, "salt"], **LENGTH)
    assert_alone(decoder.generate([GOOD, bad, "salt"], **LENGTH), expected, 1, message)
    scores = decoder.score([GOOD, bad, "salt"], [" a"] * 3)
    assert [bool(score.error) for score in scores] == [False, True, False]
    with pytest.raises(ValueError, match=message):
        decoder.generate(bad if isinstance(bad, str) else [bad], **LENGTH)


def test_one_bad_continuation_fails_alone(decoder):
    bad = [5, 999]
    scores = decoder.score([GOOD, GOOD, "salt"], [" a", bad, " and"], horizon=4)
    expected = decoder.score([GOOD, "salt"], [" a", " and"], horizon=4)
    assert [bool(score.error) for score in scores] == [False, True, False]
    assert scores[2].token_log_probs == pytest.approx(expected[1].token_log_probs, abs=1e-9)
    with pytest.raises(ValueError, match="token ids"):
        decoder.score([GOOD], [bad])


def test_one_ledger_that_cannot_go_on_fails_alone(decoder):
    first = decoder.generate([GOOD, "salt"], **LENGTH)
    (cut,) = decoder.generate(GOOD, stop=first[0].text[1], **LENGTH)
    expected = decoder.generate(continue_from=first, **LENGTH)
    results = decoder.generate(continue_from=[first[0], cut, first[1]], **LENGTH)
    assert_alone(results, expected, 1, "ended by 'stop_string'")


def test_one_passage_that_is_none_fails_alone_and_none_at_all_is_the_calls_error(pair, decoder):
    rcad = Decoder(pair, RCAD())
    expected = rcad.generate([GOOD, "salt"], passages=["a", "b"], **LENGTH)
    for bad, message in ((None, "needs a passage"), (5, "must be text, got 5")):
        results = rcad.generate([GOOD, "x", "salt"], passages=["a", bad, "b"], **LENGTH)
        assert_alone(results, expected, 1, message)
    with pytest.raises(ValueError, match="the rule rcad needs a passage a prompt, got none"):
        rcad.generate([GOOD, "salt"], **LENGTH)
    with pytest.raises(ValueError, match="the rule anchored reads no passages"):
        decoder.generate([GOOD, "salt"], passages=["a", "b"], **LENGTH)


def test_one_conversation_that_is_none_fails_alone():
    tokenizer = train_tokenizer()
    tokenizer.chat_template = "{{ messages[-1].content }}"
    decoder = Decoder(ModelPair(tiny_llama(1), tiny_llama(2), tokenizer), Anchored(k=1.0))
    first, last = ([{"role": "user", "content": text}] for text in (GOOD, "salt"))
    expected = decoder.generate(messages=[first, last], **LENGTH)
    empty = [{"role": "user", "content": ""}]
    for chat, message in ((empty, "makes no token"), ([], "messages must be a list of roles")):
        results = decoder.generate(messages=[first, chat, last], **LENGTH)
        assert_alone(results, expected, 1, message)


def test_a_word_that_the_tokenizer_lacks_fails_its_request_alone():
    """A tokenizer of words without an unknown one raises for others."""
    pair = ModelPair(tiny_llama(1), tiny_llama(2), word_tokenizer(320))
    pair.tokenizer.backend_tokenizer.model.unk_token = "none"
    decoder = Decoder(pair, Anchored(k=1.0))
    expected = decoder.generate(["t5", "t6 t7"], **LENGTH)
    results = decoder.generate(["t5", "salt", "t6 t7"], **LENGTH)
    assert_alone(results, expected, 1, "the tokenizer cannot read the text: .*Missing")


class PoisonedDecoder:
    """A tokenizer's decoder may be a program of its author's."""

    def __init__(self, poison: str) -> None:
        self.poison = poison

    def decode_chain(self, tokens: list[str]) -> list[str]:
        if self.poison in tokens:
            raise ValueError("Invalid prefix encountered")
        return tokens


def test_tokens_that_the_tokenizer_cannot_decode_fail_their_request_alone():
    tokenizer = train_tokenizer()
    decoder = Decoder(ModelPair(tiny_llama(1), tiny_llama(2), tokenizer), Anchored(k=1.0))
    expected = decoder.generate([GOOD, "salt"], **LENGTH)
    poison = tokenizer.convert_ids_to_tokens(expected[0].token_ids[1])
    tokenizer.backend_tokenizer.decoder = decoders.Decoder.custom(PoisonedDecoder(poison))
    results = decoder.generate([GOOD, "salt"], **LENGTH)
    message = "request 0: the tokenizer cannot decode the tokens drawn: .*Invalid prefix"
    assert_alone(results, expected[1:], 0, message)
    assert results[0].token_ids == expected[0].token_ids[:2]
