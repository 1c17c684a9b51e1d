"""Words and sentences of texts in any script."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchored.eval.recorded_texts import has_open_seam
from anchored.eval.segmentation import bare_words, normal_form, sentences, words

SPACED = st.characters(max_codepoint=0x2FF) | st.sampled_from("\u201c\u201d\u2014λЖ\uac00")


@given(st.text(SPACED))
def test_words_are_the_lower_cased_split_and_point_back_at_the_text(text):
    segmented = words(text)
    assert [word.text for word in segmented] == normal_form(text).lower().split()
    for word in segmented:
        assert normal_form(text[word.start : word.end]).lower() == word.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("他来了\uff0c她走了。", "他 来 了 她 走 了"),
        ("「iPhone」を買った", "iphone を 買 っ た"),
        ("ขับ\u200bรถ", "ขั บ ร ถ"),  # a zero-width space
        ("ខ្ញុំ", "ខ្ ញុំ"),
        ("나는 간다.", "나는 간다."),  # Korean has spaces
        ("他来 - the owl - sat", "他 来 the owl - sat"),  # a dash between spaces is a word
    ],
)
def test_each_letter_of_a_script_without_spaces_is_a_word(text, expected):
    assert [word.text for word in words(text)] == expected.split()
    assert bare_words(text) == expected.replace(".", "").replace("-", "").split()


def test_positions_are_of_the_text_as_it_is_spelled():
    text = unicodedata.normalize("NFD", "Un caf\u00e9 が、バ\uff01")
    spelled = [text[word.start : word.end] for word in words(text)]
    assert spelled == ["Un", "cafe\u0301", "か\u3099", "ハ\u3099"]


def test_sentences_end_at_their_marks_and_at_lines_but_not_at_abbreviations():
    text = (
        'Dr. John F. Kennedy lived in the U.S. in 1917. He said: "I will go." Then he left! In '
        "1950 (c. 1951) it cost $3.5 million.\n\nSee e.g. Smith?\n---\nNo mark at the end"
    )
    assert sentences(text) == [
        "Dr. John F. Kennedy lived in the U.S. in 1917.",
        'He said: "I will go."',
        "Then he left!",
        "In 1950 (c. 1951) it cost $3.5 million.",
        "See e.g. Smith?",
        "No mark at the end",
    ]
    assert sentences(" \n ... \n") == []


@pytest.mark.parametrize(
    "expected",
    [["他来了。", "好吗\uff1f\uff01", "「是。」", "他说。"], ["สวัสดี ", "ผมมา"], ["យើង។", "មក។"]],
)
def test_sentences_of_other_scripts_end_at_their_marks(expected):
    assert sentences("".join(expected)) == [sentence.strip() for sentence in expected]


def test_a_space_is_missing_between_words_alone():
    assert has_open_seam("The bell", "rang")
    for prompt, reference in (("The bell", ", they"), ("", "rang"), ("他来", "了。"), ("ขั", "บ")):
        assert not has_open_seam(prompt, reference)
