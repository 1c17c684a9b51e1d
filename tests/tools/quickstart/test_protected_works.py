"""The protected works: sixteen, short, distinct from each other and the corpus; their prompts."""

import re
from itertools import combinations

from anchored.eval.experiments.experiment import load_prompts
from anchored.eval.retrieval.passages import WordIndex
from anchored.inputs import records
from anchored.tools.quickstart.protected_works import (
    PASSAGE_WORDS,
    cut_prompts,
    read_works,
    write_inputs,
)

WORKS = read_works()


def spans(text: str, num_words: int) -> list[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return [tuple(words[i : i + num_words]) for i in range(len(words) - num_words + 1)]


def test_sixteen_works_are_of_a_size_and_repeat_neither_themselves_nor_each_other():
    assert [work.id[:2] for work in WORKS] == [f"{number:02d}" for number in range(1, 17)]
    for work in WORKS:
        assert 250 <= len(work.body.split()) <= 400 and work.text.isascii(), work.id
        assert len(set(spans(work.text, 5))) == len(spans(work.text, 5)), work.id
    for one, other in combinations(WORKS, 2):
        assert not set(spans(one.text, 6)) & set(spans(other.text, 6)), (one.id, other.id)


def test_prompt_and_reference_are_a_span_of_the_work_and_meet_before_the_white_space():
    for work, prompt in zip(WORKS, cut_prompts(WORKS), strict=True):
        assert (prompt.id, prompt.title) == (work.id, work.title)
        assert work.text.startswith(prompt.prompt + prompt.reference)
        assert prompt.prompt == prompt.prompt.strip() and prompt.reference[0].isspace()
        assert [len(text.split()) for text in (prompt.prompt, prompt.reference)] == [40, 100]


def test_sweeps_find_a_passage_that_holds_each_prompt_and_what_follows(tmp_path):
    prompts, passages = tmp_path / "prompts.jsonl", tmp_path / "works.jsonl"
    write_inputs(WORKS, prompts, passages)
    assert load_prompts(prompts) == cut_prompts(WORKS)
    corpus = list(records(passages))
    assert len({row["id"] for row in corpus}) == len(corpus)
    for work in WORKS:
        texts = [row["text"] for row in corpus if row["id"].startswith(work.id)]
        assert " ".join(texts).split() == work.text.split()
        assert all(len(text.split()) == PASSAGE_WORDS for text in texts[:-1])
    index = WordIndex(passages, tmp_path / "index")
    results = index.search([prompt.prompt for prompt in cut_prompts(WORKS)])
    assert [passage.id for passage in results] == [f"{work.id}-0" for work in WORKS]
