"""A small multiple-choice task for lm-eval: which continuation follows this held-out passage?"""

import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .corpus import Corpus
from .documents import Document

MIXTURE_TASK = "quickstart_mixture"
EXTRA_TASK = "quickstart_extra"
CONTEXT_WORDS, CHOICE_WORDS = 60, 12
NUM_CHOICES = 4
MAX_CONTEXT_CHARS = 500
"""Passages of long words are passed over: a tiny model's context is short."""


class Item(NamedTuple):
    """One question: `choices[label]` follows `context` after one space."""

    document_id: str
    context: str
    choices: tuple[str, ...]
    label: int


class _Passage(NamedTuple):
    document_id: str
    context: str
    continuation: str


def write_tasks(corpus: Corpus, folder: Path, *, max_items: int) -> dict[str, int]:
    """Write the tasks MIXTURE_TASK and EXTRA_TASK from the corpus's held-out documents.

    `TaskManager(include_defaults=False, include_path=folder)` then finds both, offline.
    Returns: the number of items of each task. Raises ValueError as `multiple_choice_items`.
    """
    groups = {
        MIXTURE_TASK: [source.heldout for source in corpus.sources],
        EXTRA_TASK: [corpus.extra.heldout],
    }
    tasks = {name: multiple_choice_items(g, max_items=max_items) for name, g in groups.items()}
    for name, items in tasks.items():
        write_task(name, items, folder)
    return {name: len(items) for name, items in tasks.items()}


def multiple_choice_items(
    groups: Iterable[Iterable[Document]],
    *,
    max_items: int,
    context_words: int = CONTEXT_WORDS,
    choice_words: int = CHOICE_WORDS,
    seed: int = 0,
) -> list[Item]:
    """Up to `max_items` questions, drawn by the seed from all groups together.

    Fewer if the held-out text does not hold as many passages without overlap. The false choices of
    an item come from other documents of its own group, so that the kind of text does not give the
    answer away. Raises ValueError if the documents hold not even one item.
    """
    generator = random.Random(seed)
    items = []
    for documents in groups:
        passages = [p for each in documents for p in _passages(each, context_words, choice_words)]
        for passage in passages:
            others = [p.continuation for p in passages if _may_distract(p, passage)]
            if len(others) >= NUM_CHOICES - 1:
                choices = generator.sample(others, NUM_CHOICES - 1)
                label = generator.randrange(NUM_CHOICES)
                choices.insert(label, passage.continuation)
                items.append(Item(passage.document_id, passage.context, tuple(choices), label))
    if not items:
        raise ValueError("the documents must hold at least one passage and its false choices")
    return generator.sample(items, min(len(items), max_items))


def write_task(name: str, items: Iterable[Item], folder: Path) -> None:
    """Write NAME.jsonl, one item a line, and NAME.yaml, which tells lm-eval how to ask them.

    The task file names the data by its absolute path, so that it works from any working folder;
    the cache of `datasets` lies beside it, not in the user's home.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data_file = (folder / f"{name}.jsonl").resolve()
    with data_file.open("w", encoding="utf-8", newline="\n") as file:
        for item in items:
            row = {"context": item.context, "choices": item.choices, "label": item.label}
            file.write(json.dumps({"id": item.document_id, **row}) + "\n")
    lines = [f"{key}: {json.dumps(value)}" for key, value in _task(name, data_file).items()]
    (folder / f"{name}.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _task(name: str, data_file: Path) -> dict[str, Any]:
    metrics = ("acc", "acc_norm")
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {"test": str(data_file)},
            "cache_dir": str(data_file.parent / "datasets_cache"),
        },
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "context",  # names of columns: nothing in the text is taken for a template
        "doc_to_choice": "choices",
        "doc_to_target": "label",
        "metric_list": [
            {"metric": metric, "aggregation": "mean", "higher_is_better": True}
            for metric in metrics
        ],
        "metadata": {"version": 1.0},
    }


def _passages(document: Document, context_words: int, choice_words: int) -> Iterator[_Passage]:
    """Passages without overlap, each cut at a single space: lm-eval joins the halves by one."""
    words = list(re.finditer(r"\S+", document.text))
    num_words = context_words + choice_words
    first = 0
    while first + num_words <= len(words):
        last = words[first + context_words - 1]
        context = document.text[words[first].start() : last.end()]
        continuation = document.text[last.end() : words[first + num_words - 1].end()]
        is_cut_at_space = re.match(r" \S", continuation) is not None
        if is_cut_at_space and len(context) <= MAX_CONTEXT_CHARS:
            yield _Passage(document.id, context, continuation[1:])
            first += num_words
        else:
            first += 1


def _may_distract(other: _Passage, passage: _Passage) -> bool:
    is_elsewhere = other.document_id != passage.document_id
    return is_elsewhere and other.continuation != passage.continuation
