"""What the generations copied, what the models are worth, and how they answer questions."""

import json
from pathlib import Path
from typing import Any

from tqdm import tqdm

from anchored import Decoder, ModelPair
from anchored.eval.copying import CopyingConfig, copying_scores, copying_summary
from anchored.eval.harness import AnchoredLM
from anchored.eval.local_tasks import local_task_results
from anchored.eval.utility import excerpts, utility

from .corpus import read
from .folders import Folders
from .generation import BATCH_SIZE, Setting, prompt_cache, prompts, read_generations, settings
from .multiple_choice import MultipleChoiceConfig, write_tasks
from .preset import Preset

COPYING = CopyingConfig()


def measure_copying(folders: Folders, preset: Preset) -> None:
    """Six metrics of every generation against the continuation of its work."""
    references = {prompt.id: prompt.reference for prompt in prompts(preset)}
    rows, means = [], []
    for setting in tqdm(settings(preset), "copying"):
        generations = read_generations(folders, setting)
        pairs = [(row["text"], references[row["work"]]) for row in generations]
        scores = list(zip(generations, copying_scores(pairs, COPYING), strict=True))
        for row, score in scores:
            key = {"setting": setting.name, "work": row["work"], "seed": row["seed"]}
            rows.append({**key, **score.as_row()})
        for seed in preset.seeds:
            of_seed = [score for row, score in scores if row["seed"] == seed]
            mean = copying_summary(of_seed, COPYING)
            means.append({"setting": setting.name, "seed": seed, **mean})
    _write(folders, "copying", rows)
    _write(folders, "copying_means", means)


def measure_utility(folders: Folders, preset: Preset, pair: ModelPair) -> None:
    """Held-out bits of every setting on the mixture's and the extra source's documents."""
    corpus = read(folders.corpus)
    mixture = [document.text for source in corpus.sources for document in source.heldout]
    held_out = {"mixture": mixture, corpus.extra.name: [d.text for d in corpus.extra.heldout]}
    rows = []
    for name, texts in held_out.items():
        passages = excerpts(pair.tokenizer, texts, num_tokens=preset.excerpt_tokens)
        passages = passages[:: max(1, len(passages) // preset.num_excerpts)][: preset.num_excerpts]
        if not pair.shares_tokens:
            passages = [passage.in_bytes(pair.tokenizer) for passage in passages]
        prompts_read = prompt_cache(pair)
        for setting in tqdm(settings(preset), f"bits per byte, {name}"):
            decoder = Decoder(pair, setting.rule, batch_size=BATCH_SIZE, prompt_cache=prompts_read)
            result = utility(decoder, passages)
            rows.append(
                {
                    "setting": setting.name,
                    "held_out": name,
                    "nats": result.nats,
                    "num_bytes": result.num_bytes,
                }
            )
    _write(folders, "utility", rows)


def measure_questions(folders: Folders, preset: Preset, pair: ModelPair, best: Setting) -> None:
    """Accuracy of p_s, p* at one budget and p_r on both multiple-choice tasks, through lm-eval."""
    config = MultipleChoiceConfig(max_items=preset.num_questions)
    tasks = list(write_tasks(read(folders.corpus), folders.tasks, config))
    rows, prompts_read = [], prompt_cache(pair)
    for setting in settings(preset):
        if setting.k is None or setting == best:
            decoder = Decoder(pair, setting.rule, batch_size=BATCH_SIZE, prompt_cache=prompts_read)
            answers = local_task_results(AnchoredLM(decoder), folders.tasks, tasks)
            for task, figures in answers.items():
                rows.append({"setting": setting.name, "task": task, **figures})
    _write(folders, "questions", rows)


def read_measurement(folders: Folders, name: str) -> list[dict[str, Any]]:
    """The rows of "copying", "copying_means", "utility" or "questions"."""
    rows: list[dict[str, Any]] = json.loads(_file(folders, name).read_text(encoding="utf-8"))
    return rows


def _write(folders: Folders, name: str, rows: list[dict[str, Any]]) -> None:
    path = _file(folders, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(rows), encoding="utf-8")
    partial.replace(path)


def _file(folders: Folders, name: str) -> Path:
    return folders.measurements / f"{name}.json"
