"""Generations of an experiment: every setting, prompt and seed, each recorded as it ends."""

import json
import logging
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ... import Anchored, Decoder, Generation, ModelPair, Pathwise, PromptCache, PromptRatios
from ...decode.rules.rule import takes_passage
from ...decode.texts import prompt_requests, request_list, with_values
from ...durable_files import appended, named_errors, sync, write_durably
from ..statistics import json_value
from .experiment import Experiment, Prompt, Rows, Setting
from .steps import Task, share
from .sweep import Sweep

logger = logging.getLogger(__name__)


def generate_all(experiment: Experiment, pair: ModelPair) -> None:
    """Generate what is not recorded yet; every generation is recorded as it ends."""
    share(generation_tasks(experiment, pair), experiment.locks)


def generation_tasks(experiment: Experiment, pair: ModelPair) -> list[Task]:
    """One task per setting. Prompts whose ratios are recorded are read faster."""
    decoder_of = decoders(experiment, pair, _recorded_ratios(experiment))
    return [_task(experiment, setting, decoder_of) for setting in experiment.settings]


def _task(experiment: Experiment, setting: Setting, decoder: Callable[[Setting], Any]) -> Task:
    """All generations of a setting. decoder: makes their decoder, once there is work."""
    return Task(
        name=f"generate {setting.file_name}",
        result=_file(experiment, setting),
        work=lambda: _generate(experiment, setting, decoder(setting)),
    )


def draw_by_vllm(sweep: Sweep, experiment: Experiment) -> None:
    """Generate the missing texts of settings whose rule draws inside vLLM, by one engine, which
    ends before the pair of transformers takes the GPUs. The tokens and ledgers are those of a
    `Decoder`, up to the models' batch numerics. Raises ImportError, and ValueError, as `open_pair`
    does."""
    missing = [each for each in experiment.settings if not _file(experiment, each).exists()]
    drawn = [each for each in missing if isinstance(each.rule, Anchored | Pathwise)]
    if not drawn:
        return
    from ...decode.vllm.engine import open_pair

    safe, risky = sweep.models.locations.values()
    arguments = {"tensor_parallel_size": sweep.placement.gpus, **sweep.placement.vllm}
    engine: Any = open_pair(safe, risky, **arguments)

    def decoder_of(setting: Setting) -> Any:
        return type(engine)(engine.llm, engine.pair, setting.rule)

    try:
        tasks = [_task(experiment, setting, decoder_of) for setting in drawn]
        share(tasks, experiment.locks, waits=False)
    finally:
        engine.llm.llm_engine.engine_core.shutdown()


def check_requests(experiment: Experiment, pair: ModelPair) -> None:
    """Raise ValueError for requests that the pair could never meet: a rule by which it cannot
    decode at this level, prompts that another pair has read, and a prompt that is too long, with
    the rule's preface."""
    decoder_of = decoders(experiment, pair, _recorded_ratios(experiment))
    for setting in experiment.settings:
        decoder = decoder_of(setting)
        texts = prompt_requests(decoder.level, [prompt.prompt for prompt in experiment.prompts])
        texts = with_values(
            texts,
            decoder.level.horizon(experiment.max_new_tokens, None),
            **passages_for(setting, [prompt.passage for prompt in experiment.prompts]),
        )
        requests = request_list(decoder.level, decoder.open_rule, texts)
        for prompt, request in zip(experiment.prompts, requests, strict=True):
            if request.error:
                raise ValueError(f"{setting.name}, prompt {prompt.id}: {request.error}")


def read_all_prompts(experiment: Experiment, pair: ModelPair) -> None:
    """Record the ratios of every prompt, from which its debt follows for all settings and seeds."""
    path = _ratios_file(experiment)

    def read() -> None:
        texts = [prompt.prompt for prompt in experiment.prompts]
        some_budget = Setting("", Anchored(k=1.0))  # ratios do not depend on the rule
        decoders(experiment, pair)(some_budget).prompt_ratios(texts).save(path)

    share([Task("prompts", path, read)], experiment.locks)


def read_generations(experiment: Experiment, setting: Setting) -> Rows:
    """The texts of one setting: the rows of `_row`."""
    return [row for row in _read_rows(_file(experiment, setting)) if "error" not in row]


def failed_generations(experiment: Experiment, setting: Setting) -> Rows:
    """The generations of one setting that ended in an error: id, seed, error."""
    return [row for row in _read_rows(_file(experiment, setting)) if "error" in row]


def forget_failures(experiment: Experiment) -> int:
    """Make failed generations count as missing; returns their number. Ratios that hold NaN are
    measured again."""
    ratios = _recorded_ratios(experiment)
    if ratios is not None and any(each.isnan().any() for each in ratios.by_prompt.values()):
        _ratios_file(experiment).unlink()
    num_failed = 0
    for setting in experiment.settings:
        whole, unfinished = (_file(experiment, setting, kind) for kind in ("", ".unfinished"))
        for path in filter(Path.exists, (whole, unfinished)):
            rows = _read_rows(path)
            kept = [row for row in rows if "error" not in row]
            if len(kept) < len(rows):
                num_failed += len(rows) - len(kept)
                write_durably(unfinished, _json_lines(kept))
                whole.unlink(missing_ok=True)
    return num_failed


def decoders(
    experiment: Experiment, pair: ModelPair, prompt_ratios: PromptRatios | None = None
) -> Callable[[Setting], Decoder]:
    """A setting's decoder; at byte level all settings share the prompts that were read."""
    cache = PromptCache() if is_at_bytes(experiment, pair) else None

    def decoder(setting: Setting) -> Decoder:
        made = Decoder(
            pair,
            setting.rule,
            level=experiment.level,
            batch_size=experiment.batch_size,
            prompt_cache=None if setting.rule.retokenizes else cache,
        )
        # A rule without a debt needs no ratios, which a prompt that fails does not have.
        if prompt_ratios is not None and setting.rule.charges_debt:
            made.use_prompt_ratios(prompt_ratios)
        return made

    return decoder


def is_at_bytes(experiment: Experiment, pair: ModelPair) -> bool:
    """Tell whether budgets are in nats per byte, not per token."""
    is_other = experiment.level == "auto" and not pair.shares_tokens
    return experiment.level == "byte" or is_other


def passages_for(setting: Setting, passages: Sequence[str | None]) -> dict[str, Any]:
    """The argument of generate and score for a rule that reads passages; {} for others. Raises
    ValueError if one is missing."""
    if not takes_passage(setting.rule):
        return {}
    if None in passages:
        raise ValueError(f"{setting.name} reads a passage before each prompt: name a corpus")
    return {"passages": list(passages)}


def _file(experiment: Experiment, setting: Setting, kind: str = "") -> Path:
    return experiment.folder / "generations" / f"{setting.file_name}{kind}.jsonl"


def _ledgers(experiment: Experiment, setting: Setting) -> Path:
    return experiment.folder / "ledgers" / f"{setting.file_name}.jsonl"


def _read_rows(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _json_lines(rows: Rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _ratios_file(experiment: Experiment) -> Path:
    return experiment.folder / "prompt_ratios.safetensors"


def _recorded_ratios(experiment: Experiment) -> PromptRatios | None:
    path = _ratios_file(experiment)
    return PromptRatios.load(path) if path.exists() else None


def _generate(experiment: Experiment, setting: Setting, decoder: Decoder) -> None:
    """Generate one setting, in the order of seeds and prompts once all are recorded. A generation
    that fails is recorded with its error, and the others go on."""
    path, unfinished = (_file(experiment, setting, kind) for kind in ("", ".unfinished"))
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = _recorded(unfinished, _ledgers(experiment, setting))
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
    with closing(results):  # the bar ends before an error is printed
        for index, result in results:
            prompt, seed = missing[index]
            row = rows[prompt.id, seed] = _row(experiment, setting, prompt, seed, result)
            with appended(unfinished) as file:
                file.write(f"{json.dumps(row)}\n".encode())
    unfinished.touch()  # where there was nothing to generate
    ordered = [rows[prompt.id, seed] for prompt, seed in tasks]
    write_durably(path, _json_lines(ordered))
    unfinished.unlink()
    if failed := [row for row in ordered if "error" in row]:
        logger.warning(
            "%s: %d of %d generations failed, the first with: %s",
            *(setting.name, len(failed), len(ordered), failed[0]["error"]),
        )


def _recorded(path: Path, ledgers: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Rows of an interrupted run by id and seed; a line that was cut off is dropped, and so are the
    ledgers that it wrote, but whose rows it did not."""
    rows: Rows = []
    if path.exists():
        whole = path.read_bytes().rpartition(b"\n")
        with named_errors(path):
            path.write_bytes(whole[0] + whole[1])
        rows = _read_rows(path)
    ledgers.parent.mkdir(parents=True, exist_ok=True)
    with appended(ledgers) as file:
        file.truncate(max((sum(row["ledger_part"]) for row in rows if "ledger" in row), default=0))
    return {(row["id"], row["seed"]): row for row in rows}


def _row(
    experiment: Experiment, setting: Setting, prompt: Prompt, seed: int, result: Generation
) -> dict[str, Any]:
    if result.error:
        return {"id": prompt.id, "seed": seed, "error": result.error}
    path, ledger = _ledgers(experiment, setting), result.ledger
    content = "".join(line + "\n" for line in ledger.lines()).encode()
    with appended(path) as file:
        part = [file.tell(), len(content)]
        file.write(content)
        sync(file)  # before the row that names this part
    return {
        "id": prompt.id,
        "seed": seed,
        "text": result.text,
        "pieces": result.pieces,
        "ledger": path.relative_to(experiment.folder).as_posix(),
        "ledger_part": part,
        "certified": ledger.certified,
        "spent": json_value(ledger.spent),
        "bound": json_value(ledger.header.bound),
        "debt": ledger.header.debt,
        "is_within_bound": ledger.is_within_bound,
        "finish_reason": result.finish_reason,
        "num_tokens": len(result.token_ids),
        "risky_tokens": sum(not step.accepted for step in ledger.steps),
    }
