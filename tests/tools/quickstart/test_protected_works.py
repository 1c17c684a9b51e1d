"""The prompts of the protected works, and the passages that a sweep finds for them."""

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
