"""Tasks of lm-eval over a few documents, in files: JSON is YAML too."""

import json
from pathlib import Path
from typing import Any

QUESTIONS = [
    {"text": "the harbour bell rang nine times", "choices": ["twice", "in the rain"], "answer": 0},
    {"text": "no keeper wrote", "choices": ["salt", "of the lamp", "every wave"], "answer": 1},
    {"text": "two tides", "choices": ["ago", "a ledger", "into the harbour"], "answer": 2},
]
MULTIPLE_CHOICE = {
    "output_type": "multiple_choice",
    "doc_to_choice": "choices",
    "doc_to_target": "answer",
    "metric_list": [
        {"metric": metric, "aggregation": "mean", "higher_is_better": True}
        for metric in ("acc", "acc_norm")
    ],
}
GENERATION = {
    "output_type": "generate_until",
    "doc_to_target": "{{choices[0]}}",
    "generation_kwargs": {"max_gen_toks": 6, "do_sample": True, "temperature": 0.8},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
PERPLEXITY = {
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{text}}",
    "metric_list": [{"metric": "bits_per_byte"}],
}


def write_task(folder: Path, name: str, settings: dict[str, Any]) -> None:
    """A task over QUESTIONS, which lie next to it."""
    documents = folder / "questions.json"
    documents.write_text(json.dumps(QUESTIONS))
    files = {"data_files": {"test": str(documents)}, "cache_dir": str(folder / ".cache")}
    task = {"task": name, "dataset_path": "json", "dataset_kwargs": files, "test_split": "test"}
    task |= {"doc_to_text": "{{text}}", **settings}
    (folder / f"{name}.yaml").write_text(json.dumps(task))
