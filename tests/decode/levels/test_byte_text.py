"""Streamed bytes are shown as UTF-8, whatever they are."""

from hypothesis import given
from hypothesis import strategies as st

from anchored.decode.levels.text import ByteText, TextStream


@given(st.text(max_size=20))
def test_pieces_are_whole_characters_that_join_to_the_text(text):
    stream = TextStream(ByteText())
    pieces = [stream.push(byte) for byte in text.encode()] + [stream.finish()]
    assert "".join(pieces) == stream.text == text
    assert [piece for piece in pieces if piece] == list(text)


@given(st.binary(max_size=20))
def test_ill_formed_bytes_are_replaced_and_nothing_after_them_is_lost(data):
    stream = TextStream(ByteText())
    pieces = [stream.push(byte) for byte in data] + [stream.finish()]
    assert "".join(pieces) == data.decode(errors="replace")


def test_a_stop_string_is_found_across_bytes():
    stream = TextStream(ByteText(), ("\u4e2d!",))
    emitted = ""
    for byte in "ab\u4e2d!cd".encode():
        emitted += stream.push(byte)
        if stream.is_stopped:
            break
    assert emitted == "ab"
