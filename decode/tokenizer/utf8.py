"""Characters cut by token borders: the pieces of UTF-8 forms."""

import codecs
from typing import NamedTuple

# Length of a form by the high five bits of its first byte; 0: not a first byte.
_LENGTHS = (*[1] * 16, *[0] * 8, *[2] * 4, 3, 3, 4, 0)


def form_length(first_byte: int) -> int:
    """Number of bytes of the UTF-8 form that starts with this byte; 0 where none does."""
    return 0 if first_byte in (0xC0, 0xC1) or first_byte > 0xF4 else _LENGTHS[first_byte >> 3]


CONTINUATIONS = bytes(range(0x80, 0xC0))
"""The bytes that can only be inside a UTF-8 form."""


def completions(partial: bytes) -> list[range]:
    """Code points whose UTF-8 form starts with `partial`, well-formed forms only, as ranges.

    partial: 1 to 4 bytes, the first one a first byte. An empty list means ill-formed.
    """
    length = form_length(partial[0]) if partial else 0
    if length < len(partial) or partial[1:].strip(CONTINUATIONS):
        return []
    value = partial[0] if length == 1 else partial[0] & (0x7F >> length)
    for byte in partial[1:]:
        value = value << 6 | byte & 0x3F
    free_bits = 6 * (length - len(partial))
    shortest = (0, 0, 0x80, 0x800, 0x10000)[length]
    low, high = value << free_bits, value + 1 << free_bits
    low, high = max(low, shortest), min(high, 0x110000)
    around_surrogates = range(low, min(high, 0xD800)), range(max(low, 0xE000), high)
    return [part for part in around_surrogates if part]


def cut_partial(text: bytes) -> tuple[str, bytes] | None:
    """Whole characters of `text` and the unfinished one at its end; None if it is ill-formed."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        whole = decoder.decode(text)
    except UnicodeDecodeError:
        return None
    return whole, decoder.getstate()[0]


class TokenCut(NamedTuple):
    """A token's bytes as UTF-8: `lead` ends an earlier character, `tail` begins a later one."""

    lead: bytes
    characters: str
    tail: bytes


def cut(text: bytes) -> TokenCut | None:
    """The characters of bytes and the pieces around them; None if no UTF-8 text contains them."""
    if text.isascii():
        return TokenCut(b"", text.decode(), b"")
    num_lead = len(text) - len(text.lstrip(CONTINUATIONS))
    cut = cut_partial(text[num_lead:])
    return None if cut is None or num_lead > 3 else TokenCut(text[:num_lead], *cut)
