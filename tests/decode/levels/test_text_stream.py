"""Streamed text equals decoded text, whatever the tokens or bytes."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchored.decode.tokenizer.text import ByteText, TextStream, TokenDecoder, TokenText


@pytest.fixture(scope="session", params=["tokens", "bytes"])
def symbols(request, tokenizer):
    """What decodes symbols, newly made, and the symbols of a text."""
    if request.param == "bytes":
        return ByteText, str.encode
    return (
        lambda: TokenText(TokenDecoder(tokenizer)),
        lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
    )


@given(text=st.text(max_size=40))
def test_pieces_join_to_the_text_and_never_split_a_character(symbols, text):
    make, encode = symbols
    stream = TextStream(make())
    pieces = [stream.push(symbol) for symbol in encode(text)] + [stream.finish()]
    assert "".join(pieces) == stream.text == text
    if "�" not in text:
        assert not any("�" in piece for piece in pieces)
    if make is ByteText:
        assert [piece for piece in pieces if piece] == list(text)


@given(
    text=st.text(alphabet="abc\u4e2d", max_size=30),
    stop=st.lists(st.text("abc\u4e2d", min_size=1, max_size=3)),
)
def test_text_is_cut_at_the_first_stop_string(symbols, text, stop):
    make, encode = symbols
    stream = TextStream(make(), tuple(stop))
    emitted = ""
    for symbol in encode(text):
        emitted += stream.push(symbol)
        if stream.is_stopped:
            break
    emitted += stream.finish()
    spans = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
    assert emitted == (text[: min(spans)[1]] if spans else text)


def test_bytes_that_never_become_a_character_are_replaced_at_the_end(tokenizer):
    stream = TextStream(TokenText(TokenDecoder(tokenizer)))
    start_of_snowman = tokenizer("☃", add_special_tokens=False)["input_ids"][:1]
    assert stream.push(start_of_snowman[0]) == ""
    assert stream.finish() == "�"


@given(st.binary(max_size=20))
def test_ill_formed_bytes_are_replaced_and_nothing_after_them_is_lost(data):
    stream = TextStream(ByteText())
    pieces = [stream.push(byte) for byte in data] + [stream.finish()]
    unfinished = codecs.getincrementaldecoder("utf-8")("replace")
    assert "".join(pieces) == unfinished.decode(data)


@given(st.text(min_size=1, max_size=5), st.data())
def test_a_character_that_is_cut_is_whole_after_the_cut(text, data):
    symbols = text.encode()
    cut = data.draw(st.integers(0, len(symbols)))
    begun = symbols[len(symbols[:cut].decode(errors="ignore").encode()) : cut]
    streams = TextStream(ByteText()), TextStream(ByteText(begun))
    for stream, part in zip(streams, (symbols[:cut], symbols[cut:]), strict=True):
        for byte in part:
            stream.push(byte)
        stream.finish()
    assert "".join(stream.text for stream in streams) == text
