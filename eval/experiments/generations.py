"""Generations of an experiment: both models alone and a sweep of budgets."""

import json
import zlib
from pathlib import Path
from typing import Any

from ... import Decoder, Generation, ModelPair, PromptCache
from ...durable_files import write_durably
from .experiment import Experiment, Prompt, Rows, Setting


def generate_all(experiment: Experiment, pair: ModelPair) -> None:
    """Generate every setting; one that is complete is not done again."""
    prompts_read = prompt_cache(pair)
    for setting in experiment.settings:
        path = _file(experiment, setting)
        if not path.exists():
            rows = _rows(experiment, setting, decoder(experiment, pair, setting, prompts_read))
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, "".join(json.dumps(row) + "\n" for row in rows))


def read_generations(experiment: Experiment, setting: Setting) -> Rows:
    """Rows of one setting: work, seed, text, pieces, ledger file, spent, bound."""
    lines = _file(experiment, setting).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def decoder(
    experiment: Experiment, pair: ModelPair, setting: Setting, prompts_read: PromptCache | None
) -> Decoder:
    """One setting's decoder."""
    return Decoder(pair, setting.rule, batch_size=experiment.batch_size, prompt_cache=prompts_read)


def prompt_cache(pair: ModelPair) -> PromptCache | None:
    """For all decoders of a sweep at byte level: how a prompt is read depends on no budget."""
    return None if pair.shares_tokens else PromptCache()


def _file(experiment: Experiment, setting: Setting) -> Path:
    return experiment.folder / "generations" / f"{setting.name}.jsonl"


def _rows(experiment: Experiment, setting: Setting, decoder: Decoder) -> Rows:
    tasks = [(prompt, seed) for seed in experiment.seeds for prompt in experiment.prompts]
    results = decoder.generate(
        [prompt.prompt for prompt, _ in tasks],
        max_new_tokens=experiment.max_new_tokens,
        repetition_penalty=experiment.repetition_penalty,
        seed=[_request_seed(prompt, seed) for prompt, seed in tasks],
        progress=setting.name,
    )
    return [
        _row(experiment, setting, prompt, seed, result)
        for (prompt, seed), result in zip(tasks, results, strict=True)
    ]


def _request_seed(prompt: Prompt, seed: int) -> int:
    """The same for every setting, another for every work and seed."""
    return zlib.crc32(f"{prompt.id}/{seed}".encode())


def _row(
    experiment: Experiment, setting: Setting, prompt: Prompt, seed: int, result: Generation
) -> dict[str, Any]:
    if result.error:
        raise ValueError(f"{setting.name}, {prompt.id}, seed {seed}: {result.error}")
    path = experiment.ledger(setting, prompt, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    result.ledger.save(path)
    return {
        "work": prompt.id,
        "seed": seed,
        "text": result.text,
        "pieces": result.pieces,
        "ledger": path.relative_to(experiment.folder).as_posix(),
        "certified": result.ledger.certified,
        "spent": _finite(result.ledger.spent),
        "bound": _finite(result.ledger.header.bound),
        "debt": result.ledger.header.debt,
        "is_within_bound": result.ledger.is_within_bound,
        "finish_reason": result.finish_reason,
        "num_tokens": len(result.token_ids),
        "risky_tokens": sum(not step.accepted for step in result.ledger.steps),
    }


def _finite(nats: float) -> float | None:
    return nats if nats < float("inf") else None
