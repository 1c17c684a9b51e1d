"""The automata of pretokenizers against the library's own cuts, and their detection."""

import random

import numpy as np
import pytest
from byte_tokenizers import REGEXES, STEPS, regex_split
from hard_strings import draw_hard_strings
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from anchored.decode.tokenizer.detection import detect_pretokenizer
from anchored.decode.tokenizer.families import family as automaton_of
from anchored.decode.tokenizer.pretokenizer import CharacterClasses

UNKNOWN = {
    "two digits": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "white space kept": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+",
    "no contractions": r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}


def test_automata_cut_as_the_regexes_do(family):
    automaton = automaton_of(family)
    split = pre_tokenizers.Split(Regex(REGEXES[family]), behavior="isolated")
    for text in draw_hard_strings(4000, seed=5):
        expected = [piece for piece, _ in split.pre_tokenize_str(text)]
        assert automaton.pretokens(text) == expected, text


def with_steps(*steps) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = regex_split(*steps)
    return tokenizer


def strings_of_all_kinds(classes: CharacterClasses, number: int) -> list[str]:
    """Strings of which each character is any one of a class, the classes equally often."""
    source = random.Random(6)
    kinds = [np.flatnonzero(classes.of == kind).tolist() for kind in range(1, len(classes.names))]
    lengths = (source.randint(1, 9) for _ in range(number))
    return [
        "".join(chr(source.choice(source.choice(kinds))) for _ in range(length))
        for length in lengths
    ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", STEPS)
def test_steps_cut_as_the_library_does(name):
    tokenizer = with_steps(*STEPS[name])
    automaton = detect_pretokenizer(tokenizer)
    for text in (*draw_hard_strings(1000, seed=5), *strings_of_all_kinds(automaton.classes, 1500)):
        pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
        expected = [end - start for _, (start, end) in pieces]
        assert [*map(len, automaton.pretokens(text))] == expected, text


def test_each_family_is_recognised(family, tokenizer):
    assert detect_pretokenizer(tokenizer) is automaton_of(family)


def test_gpt2s_own_byte_level_regex_is_recognised():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert detect_pretokenizer(tokenizer) is automaton_of("GPT-2")


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_regexes_are_refused_in_one_line(name):
    with pytest.raises(ValueError, match=r"pre-tokenizer: Split .* cuts like none of GPT-2, "):
        detect_pretokenizer(with_steps(UNKNOWN[name]))


FALCON = (
    pre_tokenizers.Punctuation("contiguous"),
    pre_tokenizers.ByteLevel(add_prefix_space=False),
    pre_tokenizers.Digits(individual_digits=False),
    pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
)
UNKNOWN_STEPS = {
    r"Digits behind ByteLevel .* \(Falcon": FALCON,
    r"Split '\[0-9\]\[0-9\]' cuts like none": ("[0-9][0-9]", REGEXES["GPT-2"]),
    "Whitespace cuts like none": (pre_tokenizers.Whitespace(), REGEXES["GPT-2"]),
    "it does not cut": (pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),),
    # White space at the end of lines, as nothing cuts at newlines before.
    "it does not cut as its steps do": (r"\s+$",),
    "its steps together need .* states": (r"\p{N}{1,9}", r"[0-8]{1,9}", r"[0-7]{1,9}"),
}


@pytest.mark.parametrize("reason", UNKNOWN_STEPS)
def test_other_steps_are_refused_by_name(reason):
    with pytest.raises(ValueError, match=f"unsupported pre-tokenizer: {reason}") as refusal:
        detect_pretokenizer(with_steps(*UNKNOWN_STEPS[reason]))
    assert "\n" not in str(refusal.value)
