"""Words agree with str.split, and their places point back at the text."""

import string

from hypothesis import given
from hypothesis import strategies as st

from anchored.eval.words import has_non_ascii_words, words


@given(st.text())
def test_words_are_the_lower_cased_split(text):
    assert [word.text for word in words(text)] == text.lower().split()


@given(st.text())
def test_places_point_back_at_the_text(text):
    assert all(text[word.start : word.end].lower() == word.text for word in words(text))


@given(st.text(alphabet="aB ,.-'\n"))
def test_stripped_words_are_those_of_the_text_without_punctuation(text):
    bare = text.lower().translate(str.maketrans("", "", string.punctuation))
    assert [word.text for word in words(text, tokenizer="strip_punctuation")] == bare.split()


def test_limit_counts_words_that_are_left_after_stripping():
    found = words("one - two", tokenizer="strip_punctuation", max_words=2)
    assert [(word.text, word.start) for word in found] == [("one", 0), ("two", 6)]


def test_typographic_quotes_are_no_foreign_letters():
    assert not has_non_ascii_words("\u201cdon\u2019t\u201d \u2014 she said")
    assert has_non_ascii_words("caf\u00e9")
