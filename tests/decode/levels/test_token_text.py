"""The text of a continuation is decode(prompt + new) less decode(prompt), in every tokenizer."""

import codecs
import itertools
import random
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import tiny_llama
from token_styles import STYLES

from anchored import Anchored, Decoder, ModelPair, RiskyOnly, verify
from anchored.decode.tokenizer.text import ByteText, TextStream, TokenDecoder, TokenText

style = lru_cache(lambda name: STYLES[name]())
FAST = ("llama2", "byte_level", "cleaned_up")
styles = pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in STYLES]
)
NEWLINE, SNOWMAN = [10], [0xE2, 0x98, 0x83]  # bytes of a fallback, by their ids


def text_of(tokenizer, token_ids) -> str:
    return tokenizer.decode(token_ids, skip_special_tokens=True)


def added(tokenizer, before, new) -> str:
    """The text by its definition, with transformers alone; bytes that are no character's aside."""
    old, whole = text_of(tokenizer, before), text_of(tokenizer, [*before, *new])
    if "\ufffd" in old + whole and is_fallback(tokenizer):
        return replaced_alone(tokenizer, before, new)
    shared = max(n for n in range(len(old) + 1) if whole.startswith(old[:n]))
    return whole[shared:]


def is_fallback(tokenizer) -> bool:
    return "<0x0A>" in tokenizer.get_vocab()


def replaced_alone(tokenizer, before, new) -> str:
    """The same with U+FFFD for each of these bytes, and for no others."""
    special, kept, text, shown = tokenizer.added_tokens_decoder, [], "", 0
    tokens = [(place, t) for place, t in enumerate([*before, *new]) if t not in special]
    for is_bytes, run in itertools.groupby(tokens, lambda entry: entry[1] < 256):
        for part, is_wrong in characters([*run]) if is_bytes else (([each], False) for each in run):
            is_new = part[-1][0] >= len(before)
            kept += [] if is_wrong else [token for _, token in part]
            now = text_of(tokenizer, kept)
            text += (now[shown:] + "\ufffd" * is_wrong) if is_new else ""
            shown = len(now)
    return text


def characters(run):
    """Parts of a run of (place, byte) that are a character or a byte of none, and which."""
    at = 0
    for letter in bytes(byte for _, byte in run).decode(errors="surrogateescape"):
        size = len(letter.encode(errors="surrogateescape"))
        yield run[at : at + size], "\udc80" <= letter <= "\udcff"
        at += size


@st.composite
def two_texts(draw, size: int) -> tuple[list[int], list[int]]:
    """A prompt and what follows; of few tokens, so that bytes and marks meet often."""
    few = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=6))
    single = [*few, *NEWLINE, *SNOWMAN, *range(size - 3, size)]
    # Whole characters in a row, and parts of some.
    parts = draw(st.sampled_from([[NEWLINE, SNOWMAN], [SNOWMAN, *([token] for token in single)]]))
    sizes = draw(st.sampled_from([(40, 25), (5, 90)]))
    texts = [draw(st.lists(st.sampled_from(parts), max_size=length)) for length in sizes]
    prompt, new = ([token for part in text for token in part] for text in texts)
    cut = draw(st.integers(0, 2))
    return [*prompt, *new[:cut]], new[cut:]


@styles
@given(data=st.data())
def test_pieces_join_to_what_all_tokens_add_to_the_prompts_text(name, data):
    tokenizer = style(name)
    prompt, new = data.draw(two_texts(len(tokenizer)))
    stream = TextStream(TokenText(TokenDecoder(tokenizer), prompt))
    pieces = [stream.push(token) for token in new] + [stream.finish()]
    assert "".join(pieces) == stream.text == added(tokenizer, prompt, new)


@styles
@given(data=st.data())
@settings(max_examples=50)
def test_a_stop_text_is_met_by_the_first_token_after_which_the_text_holds_it(name, data):
    tokenizer = style(name)
    prompt, new = data.draw(two_texts(len(tokenizer)))
    texts = [added(tokenizer, prompt, new[: n + 1]) for n in range(len(new))]
    whole = [text for text in texts if text] or ["s"]
    text = data.draw(st.sampled_from(whole))
    start = data.draw(st.integers(0, len(text) - 1))
    stop = text[start : start + data.draw(st.integers(1, 3))]
    stream = TextStream(TokenText(TokenDecoder(tokenizer), prompt), (stop,))
    emitted, end = "", None
    for n, token in enumerate(new):
        emitted += stream.push(token)
        if stream.is_stopped:
            end = n
            break
    emitted += stream.finish()
    # A text that ends inside a character is no text yet, and nor is the token in which it begins.
    waits = [text.endswith("\ufffd") and not is_fallback(tokenizer) for text in texts]
    held = ["" if w else text.rstrip("\ufffd") for w, text in zip(waits, texts, strict=True)]
    holds = [n for n, prefix in enumerate(held) if stop in prefix]
    if "\ufffd" not in stop:
        assert end == (holds[0] if holds else None)
    if end is not None:
        assert emitted == texts[end][: texts[end].index(stop)]


@lru_cache
def pair_of(name: str) -> ModelPair:
    size = len(style(name))
    ends = {"vocab_size": size, "bos_token_id": size - 3, "eos_token_id": size - 2}
    return ModelPair(tiny_llama(1, **ends), tiny_llama(2, **ends), style(name))


def prompts_of(tokenizer) -> list[list[int]]:
    chars = random.Random(0)
    begun = [tokenizer(text)["input_ids"] for text in ("once", "the keeper", "once upon a\n")]
    return [*begun, *([chars.randrange(len(tokenizer)) for _ in range(9)] for _ in range(9))]


@styles
def test_calls_of_random_models_give_the_text_and_go_on_where_it_was_cut(name):
    """Random weights draw halves of characters after line ends, which are the worst."""
    tokenizer, decoder = style(name), Decoder(pair_of(name), RiskyOnly(), batch_size=5)
    options = {"max_new_tokens": 12, "temperature": 2.0}
    prompts = prompts_of(tokenizer)
    results = decoder.generate(prompts, **options)
    for prompt, result in zip(prompts, results, strict=True):
        assert not result.error
        assert result.text == added(tokenizer, prompt, result.token_ids)
        assert "".join(text for text, _ in result.pieces) == result.text
        stream = decoder.stream(prompt, **options)
        assert "".join(piece.text for piece in stream) == result.text
    earlier = [result for result in results if result.finish_reason == "length"]
    for result in decoder.generate(continue_from=earlier, max_new_tokens=4, temperature=2.0):
        assert result.text == added(tokenizer, result.prompt, result.token_ids)
        assert verify(result.ledger, decoder.pair).is_ok


@pytest.mark.parametrize("name", ["llama2", "metaspace", "byte_level"])
@pytest.mark.parametrize("text", [" upon a time", "upon", "\n", "\u2603 a", ""])
def test_a_text_that_follows_a_prompt_is_scored_as_it_is_written(name, text):
    tokenizer, pair = style(name), pair_of(name)
    (score,) = Decoder(pair, Anchored(k=1.0)).score("once", text)
    prompt = pair.encode("once")
    assert text_of(tokenizer, prompt + score.token_ids) == "once" + text


def test_the_end_of_a_cleaned_up_text_waits_for_what_may_change_it():
    tokenizer = style("cleaned_up")
    new = tokenizer.convert_tokens_to_ids(["a", "n", "'", "t", "s", "."] * 20)
    stream = TextStream(TokenText(TokenDecoder(tokenizer)))
    pieces = [stream.push(token) for token in new] + [stream.finish()]
    assert "".join(pieces) == added(tokenizer, [], new)


def test_characters_of_a_fallback_come_with_their_last_bytes_and_others_lose_none():
    tokenizer = style("llama2")
    once = tokenizer("once")["input_ids"]
    stream = TextStream(TokenText(TokenDecoder(tokenizer), once), ("\n",))
    assert stream.push(10) == "" and stream.is_stopped and stream.text == ""
    stream = TextStream(TokenText(TokenDecoder(tokenizer), once))
    upon = tokenizer.convert_tokens_to_ids(["\u2581upon", "\u2581a"])
    assert [stream.push(token) for token in upon] == [" upon", " a"]
    stream = TextStream(TokenText(TokenDecoder(tokenizer)))
    a = tokenizer.convert_tokens_to_ids("a")
    pushed = [stream.push(token) for token in (a, 10, *SNOWMAN, 0xE2, a, *SNOWMAN[:2], 0xFF)]
    assert pushed == ["a", "\n", "", "", "\u2603", "", "\ufffda", "", "", "\ufffd\ufffd\ufffd"]
    assert [stream.push(token) for token in (*SNOWMAN, 0xE2)] == ["", "", "\u2603", ""]
    assert stream.finish() == "\ufffd"


@given(
    text=st.text(alphabet="abc\u4e2d", max_size=30),
    stop=st.lists(st.text("abc\u4e2d", min_size=1, max_size=3)),
)
def test_the_text_of_bytes_is_cut_at_the_first_stop_text(text, stop):
    stream = TextStream(ByteText(), tuple(stop))
    for byte in text.encode():
        if not stream.is_stopped:
            stream.push(byte)
    stream.finish()
    spans = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
    assert stream.text == (text[: min(spans)[1]] if spans else text)


@given(st.binary(max_size=20), st.integers(0, 20))
def test_ill_formed_bytes_are_replaced_and_a_character_that_is_cut_is_whole_after_the_cut(text, at):
    """Nothing is lost, and each piece is of whole characters."""
    whole = codecs.getincrementaldecoder("utf-8")("replace").decode(text)
    before = codecs.getincrementaldecoder("utf-8")("replace")
    first = before.decode(text[:at])
    streams = TextStream(ByteText()), TextStream(ByteText(before.getstate()[0]))
    for stream, part in zip(streams, (text[:at], text[at:]), strict=True):
        pieces = [stream.push(byte) for byte in part] + [stream.finish()]
        assert "".join(pieces) == stream.text
    assert (streams[0].text, streams[1].text) == (first, whole[len(first) :])
