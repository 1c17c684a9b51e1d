"""Generations of an experiment: every setting, prompt and seed, each recorded as it ends."""

import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from ... import Anchored, Decoder, Generation, ModelPair, PromptCache, PromptRatios
from ...durable_files import write_durably
from .experiment import Experiment, Prompt, Rows, Setting
from .sharing import Task, share


def generate_all(experiment: Experiment, pair: ModelPair) -> None:
    """Generate what is not recorded yet; every generation is recorded as it ends."""
    share(generation_tasks(experiment, pair), experiment.claims)


def generation_tasks(experiment: Experiment, pair: ModelPair) -> list[Task]:
    """One task a setting. Prompts whose ratios `read_all_prompts` has recorded are read faster."""
    decoder_of = decoders(experiment, pair, _recorded_ratios(experiment))

    def task(setting: Setting) -> Task:
        return Task(
            name=f"generate {setting.file_name}",
            is_done=_file(experiment, setting).exists,
            work=lambda: _generate(experiment, setting, decoder_of(setting)),
        )

    return [task(setting) for setting in experiment.settings]


def check_rules(experiment: Experiment, pair: ModelPair) -> None:
    """Raise ValueError for a rule by which the pair cannot decode at this level, and for another
    pair than the one whose prompts were read."""
    decoder_of = decoders(experiment, pair, _recorded_ratios(experiment))
    for setting in experiment.settings:
        decoder_of(setting)


def read_all_prompts(experiment: Experiment, pair: ModelPair) -> None:
    """Record what every prompt owes, which is the same for all settings and seeds."""
    path = _ratios_file(experiment)

    def read() -> None:
        texts = [prompt.prompt for prompt in experiment.prompts]
        some_budget = Setting("", Anchored(k=1.0))  # ratios do not depend on the rule
        decoders(experiment, pair)(some_budget).prompt_ratios(texts).save(path)

    share([Task("prompts", path.exists, read)], experiment.claims)


def read_generations(experiment: Experiment, setting: Setting) -> Rows:
    """Rows of one setting: work, seed, text, pieces, ledger file, spent, bound."""
    lines = _file(experiment, setting).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def decoders(
    experiment: Experiment, pair: ModelPair, prompt_ratios: PromptRatios | None = None
) -> Callable[[Setting], Decoder]:
    """A setting's decoder; at byte level prompts are read once for all: no budget decides how."""
    cache = PromptCache()

    def decoder(setting: Setting) -> Decoder:
        symbols = symbols_of(experiment, pair, setting)
        return Decoder(
            pair,
            setting.rule,
            level=experiment.level,
            batch_size=experiment.batch_size,
            prompt_cache=cache if symbols == "bytes" else None,
            prompt_ratios=None if symbols == "risky tokens" else prompt_ratios,
        )

    return decoder


def is_at_bytes(experiment: Experiment, pair: ModelPair) -> bool:
    """Whether budgets are in nats a byte, not a token."""
    is_other = experiment.level == "auto" and not pair.shares_tokens
    return experiment.level == "byte" or is_other


Symbols = Literal["tokens", "bytes", "risky tokens"]


def symbols_of(experiment: Experiment, pair: ModelPair, setting: Setting) -> Symbols:
    """What a setting decodes: tokens of both models, or, where each has its own, bytes or the
    risky model's tokens (`Rule.retokenizes`)."""
    has_choice = experiment.level != "byte" and not pair.shares_tokens
    if has_choice and setting.rule.retokenizes:
        return "risky tokens"
    return "bytes" if is_at_bytes(experiment, pair) else "tokens"


def passages_for(setting: Setting, passages: Sequence[str | None]) -> dict[str, Any]:
    """The argument of generate and score, for the rules that read passages alone.

    Raises ValueError where there are none.
    """
    if not setting.takes_passage:
        return {}
    found = [passage for passage in passages if passage is not None]
    if len(found) < len(passages):
        raise ValueError(f"{setting.name} reads a passage before each prompt: name a corpus")
    return {"passages": found}


def _file(experiment: Experiment, setting: Setting) -> Path:
    return experiment.folder / "generations" / f"{setting.file_name}.jsonl"


def _recorded_ratios(experiment: Experiment) -> PromptRatios | None:
    path = _ratios_file(experiment)
    return PromptRatios.load(path) if path.exists() else None


def _ratios_file(experiment: Experiment) -> Path:
    return experiment.folder / "prompt_ratios.safetensors"


def _generate(experiment: Experiment, setting: Setting, decoder: Decoder) -> None:
    """One setting, in the order of seeds and prompts once all are there."""
    path = _file(experiment, setting)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{setting.file_name}.unfinished.jsonl")
    rows = _recorded(unfinished)
    tasks = [(prompt, seed) for seed in experiment.seeds for prompt in experiment.prompts]
    missing = [(prompt, seed) for prompt, seed in tasks if (prompt.id, seed) not in rows]
    results = decoder.generate_each(
        [prompt.prompt for prompt, _ in missing],
        max_new_tokens=experiment.max_new_tokens,
        temperature=experiment.temperature,
        repetition_penalty=experiment.repetition_penalty,
        # The same for every setting, another for every work and seed.
        seed=[zlib.crc32(f"{prompt.id}/{seed}".encode()) for prompt, seed in missing],
        progress=setting.name,
        **passages_for(setting, [prompt.passage for prompt, _ in missing]),
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
    path = experiment.folder / "ledgers" / setting.file_name / f"{prompt.id}-{seed}.jsonl"
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
