"""Generations of an experiment: both models alone and a sweep of budgets."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ... import Decoder, Generation, ModelPair, PromptCache
from ...durable_files import write_durably
from .experiment import Experiment, Prompt, Rows, Setting


def generate_all(experiment: Experiment, pair: ModelPair) -> None:
    """Generate what is not recorded yet; every generation is recorded as it ends."""
    decoder_of = decoders(experiment, pair)
    for setting in experiment.settings:
        if not _file(experiment, setting).exists():
            _generate(experiment, setting, decoder_of(setting))


def read_generations(experiment: Experiment, setting: Setting) -> Rows:
    """Rows of one setting: work, seed, text, pieces, ledger file, spent, bound."""
    lines = _file(experiment, setting).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def decoders(experiment: Experiment, pair: ModelPair) -> Callable[[Setting], Decoder]:
    """A setting's decoder; at byte level prompts are read once for all: no budget decides how."""
    cache = None if pair.shares_tokens else PromptCache()
    size = experiment.batch_size
    return lambda setting: Decoder(pair, setting.rule, batch_size=size, prompt_cache=cache)


def _file(experiment: Experiment, setting: Setting) -> Path:
    return experiment.folder / "generations" / f"{setting.name}.jsonl"


def _generate(experiment: Experiment, setting: Setting, decoder: Decoder) -> None:
    """One setting, in the order of seeds and prompts once all are there."""
    path = _file(experiment, setting)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{setting.name}.unfinished.jsonl")
    rows = _recorded(unfinished)
    tasks = [(prompt, seed) for seed in experiment.seeds for prompt in experiment.prompts]
    missing = [(prompt, seed) for prompt, seed in tasks if (prompt.id, seed) not in rows]
    results = decoder.generate_each(
        [prompt.prompt for prompt, _ in missing],
        max_new_tokens=experiment.max_new_tokens,
        repetition_penalty=experiment.repetition_penalty,
        # The same for every setting, another for every work and seed.
        seed=[zlib.crc32(f"{prompt.id}/{seed}".encode()) for prompt, seed in missing],
        progress=setting.name,
    )
    with unfinished.open("a", encoding="utf-8") as file:
        for place, result in results:
            prompt, seed = missing[place]
            row = rows[prompt.id, seed] = _row(experiment, setting, prompt, seed, result)
            print(json.dumps(row), file=file, flush=True)
    ordered = [rows[prompt.id, seed] for prompt, seed in tasks]
    write_durably(path, "".join(json.dumps(row) + "\n" for row in ordered))
    unfinished.unlink()


def _recorded(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """By work and seed, rows that an interrupted run left; a line that was cut off is dropped."""
    if not path.exists():
        return {}
    whole = path.read_bytes().rpartition(b"\n")
    path.write_bytes(whole[0] + whole[1])
    rows = [json.loads(line) for line in whole[0].decode().splitlines()]
    return {(row["work"], row["seed"]): row for row in rows}


def _row(
    experiment: Experiment, setting: Setting, prompt: Prompt, seed: int, result: Generation
) -> dict[str, Any]:
    if result.error:
        raise ValueError(f"{setting.name}, {prompt.id}, seed {seed}: {result.error}")
    path = experiment.folder / "ledgers" / setting.name / f"{prompt.id}-{seed}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    ledger = result.ledger
    ledger.save(path)
    finite = {"spent": ledger.spent, "bound": ledger.header.bound}
    return {
        "work": prompt.id,
        "seed": seed,
        "text": result.text,
        "pieces": result.pieces,
        "ledger": path.relative_to(experiment.folder).as_posix(),
        "certified": ledger.certified,
        **{name: nats if nats < float("inf") else None for name, nats in finite.items()},
        "debt": ledger.header.debt,
        "is_within_bound": ledger.is_within_bound,
        "finish_reason": result.finish_reason,
        "num_tokens": len(result.token_ids),
        "risky_tokens": sum(not step.accepted for step in ledger.steps),
    }
