"""The facts as four-choice questions of lm-eval, in words that training did not have."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .adapter import Fact

TASK = "quickstart_facts"
FACTS = "facts"
"""The held-out set of what the risky model alone has learned: here is utility to win."""
NUM_CHOICES = 4


def write_task(facts: Sequence[Fact], folder: Path) -> None:
    """Write TASK.jsonl, one question a line, and TASK.yaml, which tells lm-eval how to ask them.

    `TaskManager(include_defaults=False, include_path=folder)` then finds the task, offline. The
    false choices are right answers of other questions, so that no model can tell them by their
    kind. The file names its data by an absolute path, so that it works from any working folder;
    the cache of `datasets` is next to it, not in the user's home.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data_file = (folder / f"{TASK}.jsonl").resolve()
    generator = random.Random(0)
    rows = []
    pairs = [(fact, question) for fact in facts for question in fact.questions]
    for fact, question in pairs:
        choices = generator.sample(
            [fact.answer, *generator.sample(fact.others, NUM_CHOICES - 1)], NUM_CHOICES
        )
        label = choices.index(fact.answer)
        rows.append({"context": question, "choices": choices, "label": label})
    lines = (json.dumps(row) + "\n" for row in rows)
    data_file.write_text("".join(lines), encoding="utf-8")
    task = (f"{key}: {json.dumps(value)}\n" for key, value in _task(data_file).items())
    (folder / f"{TASK}.yaml").write_text("".join(task), encoding="utf-8")


def _task(data_file: Path) -> dict[str, Any]:
    return {
        "task": TASK,
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
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1.0},
    }


def held_out_text(facts: Sequence[Fact]) -> list[str]:
    """Paragraphs of four questions with their answers, for bits per byte."""
    statements = [f"{fact.questions[0]} {fact.answer}." for fact in facts]
    return ["\n".join(statements[first : first + 4]) for first in range(0, len(statements), 4)]
