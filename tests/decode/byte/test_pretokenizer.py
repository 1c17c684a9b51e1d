"""The automata of the four families against the library's regexes, and their detection."""

import pytest
from byte_tokenizers import REGEXES, regex_split
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from anchored.decode.tokenizer.families import family as automaton_of
from anchored.decode.tokenizer.pretokenizer import CharacterClasses
from anchored.decode.tokenizer.vocabulary import detect_pretokenizer
from anchored.tools.bench.byte_work import draw_hard_strings

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


def test_each_family_is_recognised(family, tokenizer):
    assert detect_pretokenizer(tokenizer) is automaton_of(family)


def test_gpt2s_own_byte_level_regex_is_recognised():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert detect_pretokenizer(tokenizer) is automaton_of("GPT-2")


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_regexes_are_refused_in_one_line(name):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = regex_split(UNKNOWN[name])
    with pytest.raises(ValueError, match="unsupported pre-tokenizer: it cuts like none of GPT-2, "):
        detect_pretokenizer(tokenizer)


def test_partial_characters_have_the_classes_of_their_completions():
    classes = CharacterClasses(lambda character, category: category[:1] or "other")
    assert classes.of_partial("\u4e2d".encode()[:2]) == {classes.index("L")}
    assert classes.of_partial(b"\xc3") == {classes.index("L"), classes.index("other")}
    assert classes.of_partial(b"\xed\xa0") == frozenset()
