"""Prompts are cut from the works at word boundaries, and nothing is lost between the halves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchored.tools.quickstart.prompts import PromptConfig, cut_prompts
from anchored.tools.quickstart.protected_works import Work, read_works

WORK = Work(id="01-a", title="A B", text="A B\n\nc  d e\n\nf g.")


def test_prompt_and_reference_meet_before_the_white_space():
    config = PromptConfig(offset_words=1, prompt_words=2, reference_words=3)
    (prompt,) = cut_prompts([WORK], config)
    assert (prompt.prompt, prompt.reference) == ("B\n\nc", "  d e\n\nf")
    assert (prompt.id, prompt.title) == ("01-a", "A B")


@given(
    offset=st.integers(0, 100), prompt_words=st.integers(1, 60), reference_words=st.integers(1, 90)
)
def test_prompt_and_reference_are_a_span_of_the_work(offset, prompt_words, reference_words):
    works = read_works()
    config = PromptConfig(
        offset_words=offset, prompt_words=prompt_words, reference_words=reference_words
    )
    for work, prompt in zip(works, cut_prompts(works, config), strict=True):
        assert prompt.prompt + prompt.reference in work.text
        assert len(prompt.prompt.split()) == prompt_words
        assert len(prompt.reference.split()) == reference_words
        assert prompt.prompt == prompt.prompt.strip()


def test_the_default_prompts_open_with_the_title():
    for prompt in cut_prompts(read_works(), PromptConfig()):
        assert prompt.prompt.startswith(prompt.title + "\n\n")


def test_a_work_with_too_few_words_is_named():
    with pytest.raises(ValueError, match="01-a must have >= 145 words, got 7"):
        cut_prompts([WORK], PromptConfig())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"offset_words": -1}, "offset_words must be >= 0, got -1"),
        ({"prompt_words": 0}, "prompt_words must be >= 1, got 0"),
        ({"reference_words": 0}, "reference_words must be >= 1, got 0"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        PromptConfig(**settings)
