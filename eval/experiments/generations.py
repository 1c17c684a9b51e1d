"""Generations of an experiment: every setting, prompt and seed, each recorded as it ends."""

import json
import logging
import shutil
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ... import Anchored, Decoder, Generation, ModelPair, PromptCache, PromptRatios
from ...decode.arguments import beginnings, request_list
from ...decode.rules.rule import takes_passage
from ...durable_files import new_file, write_durably
from ..statistics import json_value
from .experiment import Experiment, Prompt, Rows, Setting
from .sharing import Task, share

logger = logging.getLogger(__name__)


def generate_all(experiment: Experiment, pair: ModelPair) -> None:
    """Generate what is not recorded yet; every generation is recorded as it ends."""
    share(generation_tasks(experiment, pair), experiment.claims)


def generation_tasks(experiment: Experiment, pair: ModelPair) -> list[Task]:
    """One task a setting. Prompts whose ratios `read_all_prompts` has recorded are read faster."""
    decoder_of = decoders(experiment, pair, _recorded_ratios(experiment))
    return [
        generation_task(experiment, setting, partial(decoder_of, setting))
        for setting in experiment.settings
    ]


def generation_task(
    experiment: Experiment, setting: Setting, decoder: Callable[[], Decoder]
) -> Task:
    """All generations of a setting. decoder: makes what draws them, once there is work."""
    return Task(
        name=f"generate {setting.file_name}",
        result=_file(experiment, setting),
        work=lambda: _generate(experiment, setting, decoder()),
    )


def check_requests(experiment: Experiment, pair: ModelPair) -> None:
    """Raise ValueError for what the pair could never generate, before anything is generated.

    This is a rule by which the pair cannot decode at this level, another pair than the one whose
    prompts were read, and a prompt that is too long, with what the rule puts before it.
    """
    decoder_of = decoders(experiment, pair, _recorded_ratios(experiment))
    for setting in experiment.settings:
        decoder = decoder_of(setting)
        requests = request_list(
            decoder.level,
            decoder.rule,
            beginnings(decoder.level, [prompt.prompt for prompt in experiment.prompts]),
            decoder.level.horizon(experiment.max_new_tokens, None),
            **passages_for(setting, [prompt.passage for prompt in experiment.prompts]),
        )
        for prompt, request in zip(experiment.prompts, requests, strict=True):
            if request.error:
                raise ValueError(f"{setting.name}, prompt {prompt.id}: {request.error}")


def read_all_prompts(experiment: Experiment, pair: ModelPair) -> None:
    """Record what every prompt owes, which is the same for all settings and seeds."""
    path = _ratios_file(experiment)

    def read() -> None:
        texts = [prompt.prompt for prompt in experiment.prompts]
        some_budget = Setting("", Anchored(k=1.0))  # ratios do not depend on the rule
        decoders(experiment, pair)(some_budget).prompt_ratios(texts).save(path)

    share([Task("prompts", path, read)], experiment.claims)


def read_generations(experiment: Experiment, setting: Setting) -> Rows:
    """The texts of one setting: id, seed, text, pieces, ledger file, spent, bound."""
    return [row for row in _read_rows(_file(experiment, setting)) if "error" not in row]


def failed_generations(experiment: Experiment, setting: Setting) -> Rows:
    """The generations of one setting that ended in an error: id, seed, error."""
    return [row for row in _read_rows(_file(experiment, setting)) if "error" in row]


def forget_failures(experiment: Experiment) -> int:
    """Make failed generations count as missing, so that they are tried again; how many there are.

    What the settings recorded beside them stays. Ratios that hold NaN are measured again.
    """
    ratios = _recorded_ratios(experiment)
    if ratios is not None and any(own.isnan().any() for own in ratios.by_prompt.values()):
        _ratios_file(experiment).unlink()
    num_failed = 0
    for setting in experiment.settings:
        for path in (_file(experiment, setting), _unfinished_file(experiment, setting)):
            rows = _read_rows(path) if path.exists() else []
            kept = [row for row in rows if "error" not in row]
            if len(kept) < len(rows):
                num_failed += len(rows) - len(kept)
                write_durably(_unfinished_file(experiment, setting), _json_lines(kept))
                _file(experiment, setting).unlink(missing_ok=True)
    return num_failed


def decoders(
    experiment: Experiment, pair: ModelPair, prompt_ratios: PromptRatios | None = None
) -> Callable[[Setting], Decoder]:
    """A setting's decoder; at byte level prompts are read once for all: no budget decides how."""
    cache = PromptCache() if is_at_bytes(experiment, pair) else None

    def decoder(setting: Setting) -> Decoder:
        return Decoder(
            pair,
            setting.rule,
            level=experiment.level,
            batch_size=experiment.batch_size,
            prompt_cache=None if setting.rule.retokenizes else cache,
            # A rule without a debt needs no ratios, which a prompt that fails does not have.
            prompt_ratios=prompt_ratios if setting.rule.charges_debt else None,
        )

    return decoder


def is_at_bytes(experiment: Experiment, pair: ModelPair) -> bool:
    """Whether budgets are in nats a byte, not a token."""
    is_other = experiment.level == "auto" and not pair.shares_tokens
    return experiment.level == "byte" or is_other


def passages_for(setting: Setting, passages: Sequence[str | None]) -> dict[str, Any]:
    """The argument of generate and score, for the rules that read passages alone.

    Raises ValueError where there are none.
    """
    if not takes_passage(setting.rule):
        return {}
    found = [passage for passage in passages if passage is not None]
    if len(found) < len(passages):
        raise ValueError(f"{setting.name} reads a passage before each prompt: name a corpus")
    return {"passages": found}


def _file(experiment: Experiment, setting: Setting) -> Path:
    return experiment.folder / "generations" / f"{setting.file_name}.jsonl"


def _unfinished_file(experiment: Experiment, setting: Setting) -> Path:
    return experiment.folder / "generations" / f"{setting.file_name}.unfinished.jsonl"


def _ledgers(experiment: Experiment, setting: Setting) -> Path:
    return experiment.folder / "ledgers" / f"{setting.file_name}.jsonl"


def _read_rows(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _json_lines(rows: Rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _recorded_ratios(experiment: Experiment) -> PromptRatios | None:
    path = _ratios_file(experiment)
    return PromptRatios.load(path) if path.exists() else None


def _ratios_file(experiment: Experiment) -> Path:
    return experiment.folder / "prompt_ratios.safetensors"


def _generate(experiment: Experiment, setting: Setting, decoder: Decoder) -> None:
    """One setting, in the order of seeds and prompts once all are there.

    A generation that fails is recorded with its error, and the others go on."""
    path = _file(experiment, setting)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _unfinished_file(experiment, setting)
    rows = _recorded(unfinished)
    tasks = [(prompt, seed) for seed in experiment.seeds for prompt in experiment.prompts]
    missing = [(prompt, seed) for prompt, seed in tasks if (prompt.id, seed) not in rows]
    results = decoder.generate_each(
        [prompt.prompt for prompt, _ in missing],
        max_new_tokens=experiment.max_new_tokens,
        temperature=experiment.temperature,
        repetition_penalty=experiment.repetition_penalty,
        # The same for every setting, another for every prompt and seed.
        seed=[zlib.crc32(f"{prompt.id}/{seed}".encode()) for prompt, seed in missing],
        progress=setting.name,
        **passages_for(setting, [prompt.passage for prompt, _ in missing]),
    )
    with unfinished.open("a", encoding="utf-8") as file:
        for index, result in results:
            prompt, seed = missing[index]
            row = rows[prompt.id, seed] = _row(experiment, setting, prompt, seed, result)
            print(json.dumps(row), file=file, flush=True)
    ordered = [rows[prompt.id, seed] for prompt, seed in tasks]
    write_durably(path, _json_lines(_with_one_file(experiment, setting, ordered)))
    unfinished.unlink()
    shutil.rmtree(_ledgers(experiment, setting).with_suffix(""), ignore_errors=True)
    if failed := [row for row in ordered if "error" in row]:
        logger.warning(
            "%s: %d of %d generations failed, the first with: %s",
            *(setting.name, len(failed), len(ordered), failed[0]["error"]),
        )


def _with_one_file(experiment: Experiment, setting: Setting, rows: Rows) -> Rows:
    """The rows of a whole setting, whose ledgers are put into one file, in their order."""
    folder, path = experiment.folder, _ledgers(experiment, setting)
    moved = []
    with new_file(path) as partial, partial.open("wb") as together:
        for row in rows:
            if "ledger" in row:
                with (folder / row["ledger"]).open("rb") as own:
                    start, length = row.get("ledger_part") or (0, -1)
                    own.seek(start)
                    content = own.read(length)
                part = [together.tell(), len(content)]
                row = {**row, "ledger": path.relative_to(folder).as_posix(), "ledger_part": part}
                together.write(content)
            moved.append(row)
    return moved


def _recorded(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """By id and seed, rows that an interrupted run left; a line that was cut off is dropped."""
    if not path.exists():
        return {}
    whole = path.read_bytes().rpartition(b"\n")
    path.write_bytes(whole[0] + whole[1])
    return {(row["id"], row["seed"]): row for row in _read_rows(path)}


def _row(
    experiment: Experiment, setting: Setting, prompt: Prompt, seed: int, result: Generation
) -> dict[str, Any]:
    if result.error:
        return {"id": prompt.id, "seed": seed, "error": result.error}
    # A file of its own until the setting is whole.
    path = _ledgers(experiment, setting).with_suffix("") / f"{prompt.id}-{seed}.jsonl"
    ledger = result.ledger
    ledger.save(path)
    return {
        "id": prompt.id,
        "seed": seed,
        "text": result.text,
        "pieces": result.pieces,
        "ledger": path.relative_to(experiment.folder).as_posix(),
        "certified": ledger.certified,
        "spent": json_value(ledger.spent),
        "bound": json_value(ledger.header.bound),
        "debt": ledger.header.debt,
        "is_within_bound": ledger.is_within_bound,
        "finish_reason": result.finish_reason,
        "num_tokens": len(result.token_ids),
        "risky_tokens": sum(not step.accepted for step in ledger.steps),
    }
