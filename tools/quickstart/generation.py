"""Generations from the prompts of the protected works: both models and a sweep of budgets."""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchored import Anchored, Decoder, Generation, ModelPair, PromptCache, RiskyOnly, SafeOnly
from anchored.decode.rules.rule import Rule

from .data import protected_works
from .folders import Folders
from .preset import Preset
from .prompts import Prompt, PromptConfig, cut_prompts

PROMPTS = PromptConfig(prompt_words=40, reference_words=100)
BATCH_SIZE = 48


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to decode: a row of the results table."""

    name: str
    rule: Rule
    k: float | None = None


def settings(preset: Preset) -> list[Setting]:
    """p_s, Anchored Decoding at each k, p_r."""
    sweep = [Setting(f"k={k:g}", Anchored(k=k), k) for k in preset.ks]
    return [Setting("p_s", SafeOnly()), *sweep, Setting("p_r", RiskyOnly())]


def prompts(preset: Preset) -> list[Prompt]:
    """One prompt a protected work."""
    return cut_prompts(protected_works(preset), PROMPTS)


def generate_all(folders: Folders, preset: Preset, pair: ModelPair) -> None:
    """Generate every setting; one that is complete is not done again."""
    prompts_read = prompt_cache(pair)
    for setting in settings(preset):
        path = generations_file(folders, setting)
        if not path.exists():
            decoder = Decoder(pair, setting.rule, batch_size=BATCH_SIZE, prompt_cache=prompts_read)
            _generate(folders, preset, setting, decoder, path)


def prompt_cache(pair: ModelPair) -> PromptCache | None:
    """For all decoders of a sweep at byte level: how a prompt is read depends on no budget."""
    return None if pair.shares_tokens else PromptCache()


def generations_file(folders: Folders, setting: Setting) -> Path:
    """JSON lines of one setting's generations."""
    return folders.generations / f"{setting.name}.jsonl"


def read_generations(folders: Folders, setting: Setting) -> list[dict[str, Any]]:
    """Rows of one setting: work, seed, text, pieces, ledger file, spent, bound."""
    lines = generations_file(folders, setting).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _generate(
    folders: Folders, preset: Preset, setting: Setting, decoder: Decoder, path: Path
) -> None:
    tasks = [(prompt, seed) for seed in preset.seeds for prompt in prompts(preset)]
    results = decoder.generate(
        [prompt.prompt for prompt, _ in tasks],
        max_new_tokens=preset.max_new_tokens,
        repetition_penalty=preset.repetition_penalty,
        seed=[_request_seed(prompt, seed) for prompt, seed in tasks],
        progress=setting.name,
    )
    rows = [
        _row(folders, setting, prompt, seed, result)
        for (prompt, seed), result in zip(tasks, results, strict=True)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    partial.replace(path)


def _request_seed(prompt: Prompt, seed: int) -> int:
    """The same for every setting, another for every work and seed."""
    return zlib.crc32(f"{prompt.id}/{seed}".encode())


def _row(
    folders: Folders, setting: Setting, prompt: Prompt, seed: int, result: Generation
) -> dict[str, Any]:
    if result.error:
        raise ValueError(f"{setting.name}, {prompt.id}, seed {seed}: {result.error}")
    folder = folders.ledgers / setting.name
    folder.mkdir(parents=True, exist_ok=True)
    ledger = folder / f"{prompt.id}-{seed}.jsonl"
    result.ledger.save(ledger)
    return {
        "work": prompt.id,
        "seed": seed,
        "text": result.text,
        "pieces": result.pieces,
        "ledger": ledger.relative_to(folders.root).as_posix(),
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
