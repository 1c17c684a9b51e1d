"""The protected works: sixteen, short, distinct from each other and the corpus; their prompts."""

import re
from collections import Counter
from itertools import combinations

import pytest

from anchored.eval.experiments.experiment import load_prompts
from anchored.eval.retrieval.passages import WordIndex
from anchored.inputs import records
from anchored.tools.quickstart.protected_works import (
    PASSAGE_WORDS,
    WORKS_FOLDER,
    Work,
    cut_prompts,
    read_works,
    write_inputs,
)

WORKS = read_works()


def spans(text: str, num_words: int) -> list[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return [tuple(words[i : i + num_words]) for i in range(len(words) - num_words + 1)]


def test_there_are_sixteen_works_with_distinct_titles():
    assert len({work.title for work in WORKS}) == 16
    assert [work.id[:2] for work in WORKS] == [f"{number:02d}" for number in range(1, 17)]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.id)
def test_a_work_is_250_to_400_words_of_ascii_that_hardly_repeat_themselves(work):
    assert 250 <= len(work.body.split()) <= 400
    assert work.text.isascii() and "\t" not in work.text
    repeated = [span for span, count in Counter(spans(work.text, 5)).items() if count > 1]
    assert repeated == []


def test_no_two_works_share_a_span_of_six_words():
    for one, other in combinations(WORKS, 2):
        assert not set(spans(one.text, 6)) & set(spans(other.text, 6)), (one.id, other.id)


def test_the_dedication_lies_beside_the_works():
    assert "CC0 1.0" in (WORKS_FOLDER / "README.md").read_text()


@pytest.mark.parametrize("text", ["One line\nand another.\n\nMore.\n", "A title alone\n"])
def test_a_work_without_title_or_text_is_refused(tmp_path, text):
    with pytest.raises(FileNotFoundError, match="no protected works"):
        read_works(tmp_path)
    (tmp_path / "01-bare.txt").write_text(text)
    with pytest.raises(ValueError, match=r"01-bare\.txt must be a title, a blank line and a text"):
        read_works(tmp_path)


WORK = Work(id="01-a", title="A B", text="A B" + "\n\nc  d" * 70)


@pytest.mark.parametrize("work", [*WORKS, WORK], ids=lambda work: work.id)
def test_prompt_and_reference_are_a_span_of_the_work_and_meet_before_the_white_space(work):
    (prompt,) = cut_prompts([work])
    assert (prompt.id, prompt.title) == (work.id, work.title)
    assert work.text.startswith(prompt.prompt + prompt.reference)
    assert prompt.prompt == prompt.prompt.strip() and prompt.reference[0].isspace()
    assert [len(text.split()) for text in (prompt.prompt, prompt.reference)] == [40, 100]


def test_a_work_with_too_few_words_is_named():
    with pytest.raises(ValueError, match="01-a must have >= 140 words, got 3"):
        cut_prompts([Work(id="01-a", title="A", text="A\n\nB c")])


def test_sweeps_find_a_passage_that_holds_each_prompt_and_what_follows(tmp_path):
    prompts, passages = tmp_path / "prompts.jsonl", tmp_path / "works.jsonl"
    write_inputs(WORKS, prompts, passages)
    assert load_prompts(prompts) == cut_prompts(WORKS)
    corpus = list(records(passages))
    assert len({row["id"] for row in corpus}) == len(corpus)
    for work in WORKS:
        texts = [each["text"] for each in corpus if each["id"].startswith(work.id)]
        assert " ".join(texts).split() == work.text.split()
        assert all(len(text.split()) == PASSAGE_WORDS for text in texts[:-1])
    index = WordIndex(passages, tmp_path / "index")
    results = index.search([prompt.prompt for prompt in cut_prompts(WORKS)])
    assert [passage.id for passage in results] == [f"{work.id}-0" for work in WORKS]
