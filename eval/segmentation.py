"""Words and sentences of a text in any script, each defined once for all of `eval`.

Texts are put into NFC first, so that composed and decomposed accents read the same, without soft
hyphens, joiners and what else is not shown. In scripts that are written without spaces every letter
is a word, with the marks on it: the default rules of Unicode Standard Annex 29, which need no
dictionary, so that no release of one changes a figure.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import regex

_SCRIPTS: Final = (
    *("Han", "Hiragana", "Katakana", "Bopomofo", "Yi", "Thai", "Lao", "Khmer", "Myanmar"),
    *("Tibetan", "Javanese", "Balinese", "Tai_Le", "New_Tai_Lue", "Tai_Tham", "Tai_Viet"),
)
"""Scripts without spaces between words."""
_OF_ALL = "".join(rf"\p{{{name}}}" for name in _SCRIPTS)
# U+30FC and its half width make a vowel long, in two scripts, and are counted to none.
_LETTER: Final = rf"[[\p{{L}}\p{{Nl}}]&&[{_OF_ALL}\u30fc\uff70]]"
_SPACED: Final = rf"(?:(?!{_LETTER})[\p{{L}}\p{{M}}\p{{N}}_])+"
_UNSPACED: Final = regex.compile(_LETTER, regex.V1)
_BARE: Final = regex.compile(rf"{_LETTER}\p{{M}}*|{_SPACED}", regex.V1)
_RUN: Final = regex.compile(rf"(?:{_LETTER}\p{{M}}*)+|{_SPACED}", regex.V1)
_PUNCTUATION: Final = r"[^\p{L}\p{M}\p{N}_\s]+"
# What is between spaces; punctuation between them belongs to the letters next to it.
_BETWEEN_SPACES: Final = regex.compile(
    rf"(?:{_PUNCTUATION}\s+)*\S*{_LETTER}\S*(?:\s+{_PUNCTUATION}(?!\S))*|\S+", regex.V1
)
_INVISIBLE: Final = regex.compile(r"\p{Default_Ignorable_Code_Point}+")

_ABBREVIATION: Final = regex.compile(
    r"(?:\b(?:\p{Lu}|Mr|Mrs|Ms|Dr|Prof|Sr|Jr|St|Gen|Col|Capt|Lt|Sgt|Rev|Hon|Gov|Sen|Rep|No|Vol|vs"
    r"|etc|Inc|Ltd|Co|Corp|approx|ca|c|b|d|e\.g|i\.e)|\b(?:\p{L}\.)+\p{L})\.$"
)
_END: Final = regex.compile(
    # A mark that also ends abbreviations and numbers: before a space and a letter without case or
    # a capital. Marks with one meaning, as the ideographic full stop. Spaces of Thai and Lao, which
    # have no marks and a space between sentences alone.
    r"(?<=[.!?])[\"')\]\u201d\u2019]*\s+(?=[\"'(\[\u201c\u2018]?[\p{Lu}\p{Lt}\p{Lo}\p{Nd}])"
    r"|(?<=[\p{Sentence_Terminal}--[.!?]])[\"')\]\u201d\u2019\p{Pe}]*\s*(?!\p{Sentence_Terminal})"
    r"|(?<=[\p{Thai}\p{Lao}])\s+(?=[\p{Thai}\p{Lao}])",
    regex.V1,
)


class Word(NamedTuple):
    """A lower-cased word and the characters [start, end) of the text it was read from."""

    text: str
    start: int
    end: int


def normal_form(text: str) -> str:
    """The text in NFC without invisible characters, the form in which texts are compared."""
    return text if text.isascii() else _INVISIBLE.sub("", unicodedata.normalize("NFC", text))


def words(text: str, *, max_words: int | None = None) -> list[Word]:
    """Lower-cased words between white space, the first `max_words` of them (None: all). Punctuation
    stays attached, as `text.lower().split()` leaves it; but where a run has letters of scripts
    without spaces, it is cut into its `bare_words`, and punctuation alone next to it is no word.
    `start` and `end` count characters of `text` as it is, not of its normal form."""
    normal = normal_form(text)
    matches = itertools.islice(_matches(normal), max_words)
    read = [Word(match.group().lower(), *match.span()) for match in matches]
    if normal == text:
        return read
    offsets = _offsets(text)
    return [Word(word.text, offsets[word.start], offsets[word.end]) for word in read]


def bare_words(text: str) -> list[str]:
    """Lower-cased runs of letters, marks, digits and underscores; each letter of a script without
    spaces is one."""
    return [match.lower() for match in _BARE.findall(normal_form(text))]


def search_terms(text: str) -> list[str]:
    """The terms that a search by words compares: `bare_words` of two characters and more, and in
    scripts without spaces every two letters in a row, as one letter says little."""
    terms: list[str] = []
    for run in _RUN.findall(normal_form(text)):
        letters = bare_words(run)
        if _UNSPACED.match(run):
            terms += map("".join, itertools.pairwise(letters)) if len(letters) > 1 else letters
        elif len(run) > 1:
            terms += letters
    return terms


def sentences(text: str) -> list[str]:
    """The sentences of a text in order; a line break ends one, an abbreviation or initial none."""
    parts: list[str] = []
    for line in unicodedata.normalize("NFC", text).splitlines():
        start = 0
        for end in _END.finditer(line):
            if not _ABBREVIATION.search(line[start : end.start()]):
                parts.append(line[start : end.end()].strip())
                start = end.end()
        parts.append(line[start:].strip())
    return [sentence for sentence in parts if any(map(str.isalnum, sentence))]


def _matches(normal: str) -> Iterator[Any]:
    if normal.isascii() or not _UNSPACED.search(normal):
        yield from re.finditer(r"\S+", normal)
        return
    for run in _BETWEEN_SPACES.finditer(normal):
        if _UNSPACED.search(normal, run.start(), run.end()):
            yield from _BARE.finditer(normal, run.start(), run.end())
        else:
            yield run


def _offsets(text: str) -> list[int]:
    """The index in the text of each character of the normal form, and of its end."""
    offsets, start = [], 0
    for cluster in regex.findall(r"\X", text):  # no character is composed of two of them
        offsets += [start] * len(normal_form(cluster))
        start += len(cluster)
    return [*offsets, start]
