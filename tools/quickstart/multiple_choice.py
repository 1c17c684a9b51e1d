"""A small multiple-choice task for lm-eval: which continuation follows this held-out passage?"""

import json
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .corpus import Corpus
from .documents import Document

MIXTURE_TASK = "quickstart_mixture"
EXTRA_TASK = "quickstart_extra"


@dataclass(frozen=True, kw_only=True, slots=True)
class MultipleChoiceConfig:
    """Size of a task and of its items."""

    max_items: int = 80
    """Fewer if the held-out text does not hold as many passages without overlap."""
    context_words: int = 60
    max_context_chars: int = 500
    """Passages of long words are passed over: a tiny model's context is short."""
    choice_words: int = 12
    num_choices: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_items", "context_words", "max_context_chars", "choice_words"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if self.num_choices < 2:
            raise ValueError(f"num_choices must be >= 2, got {self.num_choices}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One question: `choices[label]` follows `context` after one space."""

    document_id: str
    context: str
    choices: tuple[str, ...]
    label: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Passage:
    document_id: str
    context: str
    continuation: str


def write_tasks(corpus: Corpus, folder: Path, config: MultipleChoiceConfig) -> dict[str, int]:
    """Write the tasks MIXTURE_TASK and EXTRA_TASK from the corpus's held-out documents.

    `TaskManager(include_defaults=False, include_path=folder)` then finds both, offline.
    Returns: the number of items of each task. Raises ValueError as `multiple_choice_items`.
    """
    groups = {
        MIXTURE_TASK: [source.heldout for source in corpus.sources],
        EXTRA_TASK: [corpus.extra.heldout],
    }
    tasks = {name: multiple_choice_items(group, config) for name, group in groups.items()}
    for name, items in tasks.items():
        write_task(name, items, folder)
    return {name: len(items) for name, items in tasks.items()}


def multiple_choice_items(
    groups: Iterable[Iterable[Document]], config: MultipleChoiceConfig
) -> list[Item]:
    """Up to `max_items` questions, drawn by the seed from all groups together.

    The false choices of an item come from other documents of its own group, so that the kind of
    text does not give the answer away. Raises ValueError if the documents hold not even one item.
    """
    generator = random.Random(config.seed)
    items = []
    for documents in groups:
        passages = [passage for document in documents for passage in _passages(document, config)]
        for passage in passages:
            others = [p for p in passages if _may_distract(p, passage)]
            if len(others) >= config.num_choices - 1:
                items.append(_item(passage, others, config, generator))
    if not items:
        raise ValueError("the documents must hold at least one passage and its false choices")
    return generator.sample(items, min(len(items), config.max_items))


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


def _passages(document: Document, config: MultipleChoiceConfig) -> list[_Passage]:
    """Passages without overlap, each cut at a single space: lm-eval joins the halves by one."""
    words = list(re.finditer(r"\S+", document.text))
    num_words = config.context_words + config.choice_words
    passages = []
    first = 0
    while first + num_words <= len(words):
        last = words[first + config.context_words - 1]
        context = document.text[words[first].start() : last.end()]
        continuation = document.text[last.end() : words[first + num_words - 1].end()]
        is_cut_at_space = re.match(r" \S", continuation) is not None
        if is_cut_at_space and len(context) <= config.max_context_chars:
            passage = _Passage(
                document_id=document.id, context=context, continuation=continuation[1:]
            )
            passages.append(passage)
            first += num_words
        else:
            first += 1
    return passages


def _may_distract(other: _Passage, passage: _Passage) -> bool:
    is_elsewhere = other.document_id != passage.document_id
    return is_elsewhere and other.continuation != passage.continuation


def _item(
    passage: _Passage,
    others: list[_Passage],
    config: MultipleChoiceConfig,
    generator: random.Random,
) -> Item:
    false_choices = generator.sample(others, config.num_choices - 1)
    choices = [other.continuation for other in false_choices]
    label = generator.randrange(config.num_choices)
    choices.insert(label, passage.continuation)
    return Item(
        document_id=passage.document_id,
        context=passage.context,
        choices=tuple(choices),
        label=label,
    )
