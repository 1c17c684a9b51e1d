"""Which family a tokenizer's pretokenizer belongs to, found by comparing cuts on hard strings."""

import random
from collections.abc import Sequence

from tokenizers import Tokenizer

from .pretokenizer_automaton import PretokenizerAutomaton
from .pretokenizer_families import FAMILIES, family

NUM_STRINGS = 600
MAX_CHARACTERS = 12
# White space and line ends, contraction letters in both cases, digits, symbols, and scripts with
# letters of every category, marks, joined emoji and characters with unusual case foldings.
ALPHABET = (
    *"    \t\n\n\r\u00a0\u2028\u3000''''sStTrReEvVlLmMdDxXaA0099.!/-_",
    *"\u4e2d\u65e5\u00e9\u0301\u017f\u212a\u02b0\u01c5\u00df\u00bd\u0663\u0628\u0130\ufb06",
    *"\U0001f600\u200d\ufe0f\u2019\x1c\x85\u180e\u0e33\u1100",
)


def detect_pretokenizer(tokenizer: Tokenizer) -> PretokenizerAutomaton:
    """The automaton that cuts as `tokenizer` does.

    Raises ValueError when none of the families does, on a few hundred strings from a fixed seed.
    """
    strings = _hard_strings(tokenizer)
    expected = [_pretoken_lengths(tokenizer, text) for text in strings]
    for name in FAMILIES:
        automaton = family(name)
        if _agrees(automaton, strings, expected):
            return automaton
    raise ValueError(
        f"unsupported pre-tokenizer: it cuts like none of {', '.join(FAMILIES)}; "
        "byte level needs one of these"
    )


def _hard_strings(tokenizer: Tokenizer) -> list[str]:
    source = random.Random(0)
    lengths = (source.randint(1, MAX_CHARACTERS) for _ in range(NUM_STRINGS))
    drawn = ["".join(source.choices(ALPHABET, k=length)) for length in lengths]
    return [normalized(tokenizer, text) for text in (*drawn, "1234567890123")]


def normalized(tokenizer: Tokenizer, text: str) -> str:
    """The text as the tokenizer's normalizer writes it."""
    normalizer = tokenizer.normalizer
    return text if normalizer is None else str(normalizer.normalize_str(text))


def _pretoken_lengths(tokenizer: Tokenizer, text: str) -> list[int]:
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [end - start for _, (start, end) in pieces]


def _agrees(
    automaton: PretokenizerAutomaton, strings: Sequence[str], expected: Sequence[list[int]]
) -> bool:
    pairs = zip(strings, expected, strict=True)
    return all(lengths == list(map(len, automaton.pretokens(text))) for text, lengths in pairs)
