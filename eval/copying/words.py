"""Words of a text and where each one stands in it."""

import itertools
import re
import string
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

Tokenizer = Literal["split", "strip_punctuation"]

_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Word(NamedTuple):
    """A lower-cased word and the characters [start, end) of the text it was read from."""

    text: str
    start: int
    end: int


def words(text: str, *, tokenizer: Tokenizer = "split", max_words: int | None = None) -> list[Word]:
    """Lower-cased words between white space, the first `max_words` of them (None: all).

    tokenizer: "split" keeps punctuation attached, as `text.lower().split()` does;
    "strip_punctuation" deletes the characters of `string.punctuation` first.
    Returns: words in order; `start` and `end` count characters of `text` as given.
    """
    found: Iterable[Word] = (
        Word(match.group().lower(), match.start(), match.end())
        for match in re.finditer(r"\S+", text)
    )
    if tokenizer == "strip_punctuation":
        found = _without_punctuation(found)
    return list(itertools.islice(found, max_words))


def has_non_ascii_words(text: str) -> bool:
    """True if a letter or digit lies outside ASCII; typographic quotes and dashes do not count."""
    return not text.isascii() and any(c.isalnum() and not c.isascii() for c in text)


def _without_punctuation(found: Iterable[Word]) -> Iterator[Word]:
    for word in found:
        if stripped := word.text.translate(_PUNCTUATION):
            yield word._replace(text=stripped)
