"""The automata of pretokenizers against the library's cuts, and what is refused."""

import random

import numpy as np
import pytest
from byte_tokenizers import REGEXES, STEPS, draw_hard_strings, regex_split
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from anchored.decode.tokenizer.detection import detect_pretokenizer
from anchored.decode.tokenizer.pretokenizer import CharacterClasses
from anchored.decode.tokenizer.regex import regex_automaton

SETS = ["a", "b", "(?i:b)", "(?i:[^b])", "[ab]", "[^a]", r"\s", r"\S", r"\n", r"\p{Lu}"]
REPEATED = ["?", "*", "+", "{2}", "{1,2}", "{0,2}", "{2,}"]
parts = st.recursive(
    st.sampled_from([*SETS, r"\s+(?!\S)", "a+(?=b)", r"\s+$"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(REPEATED)).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=8,
)


@settings(max_examples=25)
@given(pattern=st.lists(parts, min_size=1, max_size=3).map("|".join), seed=st.integers(0, 99))
def test_a_regex_cuts_as_the_librarys_engine_does(pattern, seed):
    try:
        automaton = regex_automaton(pattern)
    except ValueError as error:
        assume("empty text" not in str(error) and "states" not in str(error))
        raise
    split, source = pre_tokenizers.Split(Regex(pattern), "isolated"), random.Random(seed)
    for _ in range(40):
        text = "".join(source.choices("aabbAB  \n\u00e9", k=source.randint(1, 9)))
        expected = [piece for piece, _ in split.pre_tokenize_str(text)]
        assert automaton.pretokens(text) == expected, text


UNUSUAL = {
    "(?i:[^q]+)|q+": "xQx",
    r"(?i:\p{Lu}+)": "aBc",
    r"\w+|[^\w\s]+": "m\u00b2!\u00bd",
    "(?i:'s|'re|'ve|'ll)": "I\u017f'\u017f'RE'vE'Ll",
    "(?i:s+|f+|t(?:x|h))": "\u00dfS\ufb00Ft\ufb06hTH",
}
"""Regexes with unusual sets, each with a text whose characters tell them from similar ones."""


@pytest.mark.parametrize("pattern", UNUSUAL)
def test_unusual_characters_are_cut_as_the_librarys_engine_does(pattern):
    text = UNUSUAL[pattern]
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    expected = [piece for piece, _ in split.pre_tokenize_str(text)]
    assert regex_automaton(pattern).pretokens(text) == expected


def with_steps(*steps) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = regex_split(*steps)
    return tokenizer


def strings_of_all_kinds(classes: CharacterClasses, number: int) -> list[str]:
    """Strings of which each character is any one of a class, the classes equally often."""
    source = random.Random(6)
    kinds = [np.flatnonzero(classes.of == kind).tolist() for kind in range(1, classes.number)]
    letters = [[chr(source.choice(source.choice(kinds))) for _ in range(6)] for _ in range(number)]
    return ["".join(text) for text in letters]


OTHERS = {
    "GPT-2's ByteLevel": (pre_tokenizers.ByteLevel(add_prefix_space=False),),
    "symbols in runs": (pre_tokenizers.Punctuation("contiguous"), r"\p{N}{1,2}"),
    "words of the engine": (r" ?\w+| ?[^\w\s]+|\s+",),
    "nothing": (pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),),
    "a text inverted": (pre_tokenizers.Split("^\n", "isolated", invert=True), r"\p{L}+"),
    "a private character": (pre_tokenizers.Split("\U000f0001", "isolated"),),
    "matches in runs": (pre_tokenizers.Split(Regex(r"a(?=b)|ab?"), "contiguous"),),
    "all but matches removed": (
        pre_tokenizers.Split(Regex(REGEXES["o200k"]), "removed", invert=True),
    ),
    "all are matches": (pre_tokenizers.Split(Regex(r"a+|[^a]"), "merged_with_previous"),),
    "a script": (r"\p{Han}+|[\p{Lu}&&[^\p{Han}]]*[\p{Ll}\p{Lo}&&[^\p{Han}]]+",),
}
CUTS = {**{name: (regex,) for name, regex in REGEXES.items()}, **STEPS, **OTHERS}


FAST = ("GPT-2", "o200k", "DeepSeek-V3", "symbols in runs", "matches in runs", "a text inverted")


@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in CUTS]
)
def test_steps_cut_as_the_library_does(name):
    tokenizer = with_steps(*CUTS[name])
    automaton = detect_pretokenizer(tokenizer)
    for text in (*draw_hard_strings(500, seed=5), *strings_of_all_kinds(automaton.classes, 500)):
        pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
        expected = [end - start for _, (start, end) in pieces]
        assert [*map(len, automaton.pretokens(text))] == expected, text


FALCON = (
    pre_tokenizers.Punctuation("contiguous"),
    pre_tokenizers.ByteLevel(add_prefix_space=False),
    pre_tokenizers.Digits(individual_digits=False),
    pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
)
REFUSED = {
    r"Digits after ByteLevel .* \(Falcon": FALCON,
    r"Split .*: byte level does not know what '\(\?=\(": (r"(?=(\d{3})+(?!\d))",),  # SuperBPE
    r"Split .*: it matches an empty text": (r"a*|b",),
    "Whitespace: byte level needs Split, Digits or": (
        pre_tokenizers.Whitespace(),
        REGEXES["GPT-2"],
    ),
    "Split 'ab': .* not MergedWithNext": (pre_tokenizers.Split("ab", "merged_with_next"),),
    "Split .*: .* not Removed, of this": (
        pre_tokenizers.Split(Regex(r"[^\u0e01-\u0e7f]"), "removed", invert=True),
    ),
    "it does more than to cut out what its": (pre_tokenizers.ByteLevel(add_prefix_space=True),),
    # The engine takes one character for these, or these for one.
    "Split .*: byte level cannot ignore the case of 'fi', to": ("a(?i:fi)",),
    "Split .*: '\u00df' matches several characters": ("(?i:\u00df)|q",),
    # The engine leaves such a repeat after the empty text, and does not try h.
    "Split 'qz.* cannot repeat what may match an empty": ("qz(?:w?|h)*",),
    "Split .*: Oniguruma error: empty char-class": ("[]a]",),  # of the first two characters
    "Split .*: it needs 71 states, at most 64": (r"a{1,70}",),
    "Split .*: it needs more than 4096 states": (r"(?:a|b)*a(?:a|b){12}",),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_steps_are_refused_by_name(reason):
    with pytest.raises(ValueError, match=f"unsupported pre-tokenizer: {reason}") as refusal:
        detect_pretokenizer(with_steps(*REFUSED[reason]))
    assert "\n" not in str(refusal.value)
