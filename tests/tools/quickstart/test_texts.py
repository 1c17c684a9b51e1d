"""The prompts of the protected works, the passages that a sweep finds for them, and what the safe
model made here reads."""

import re

from anchored.eval.experiments.experiment import load_prompts
from anchored.eval.retrieval.passages import WordIndex
from anchored.inputs import records
from anchored.tools.quickstart.corpus import MIN_CHARS, gather, read_sources
from anchored.tools.quickstart.protected_works import (
    PASSAGE_WORDS,
    cut_prompts,
    read_works,
    write_inputs,
)

WORKS = read_works()
MAX_BYTES = 60_000


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


def test_sources_hold_what_was_asked_and_hold_out_the_same_texts_of_a_longer_corpus(tmp_path):
    for size in (MAX_BYTES, 2 * MAX_BYTES):
        gather(tmp_path / str(size), max_bytes=size)
    sources, longer = (read_sources(tmp_path / str(size)) for size in (MAX_BYTES, 2 * MAX_BYTES))
    assert [source.name for source in sources] == ["docstrings", "topics"]
    for source in sources:
        size = sum(len(text.encode()) for text in (*source.texts, *source.heldout))
        assert MAX_BYTES <= size < 2 * MAX_BYTES
        assert min(map(len, source.texts)) >= MIN_CHARS
        assert re.fullmatch(r"\w+ 3\.\d+\.\d+\S*", source.revision)
    held_out = {text for source in sources for text in source.heldout}
    assert held_out and held_out <= {text for source in longer for text in source.heldout}
    assert not held_out & {text for source in longer for text in source.texts}
    assert all(set(a.texts) <= set(b.texts) for a, b in zip(sources, longer, strict=True))
