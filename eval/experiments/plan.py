"""Prompts, settings and experiment of a sweep; a plan of its texts, memory, hours and disk."""

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ... import Anchored, RiskyOnly, SafeOnly, text_tables
from ...configs.config_file import find_path
from ...decode.byte.byte_level import BYTES_PER_TOKEN
from ...decode.pair.folder import model_location
from ...decode.pair_options import ModelOptions
from ...decode.rules.registry import make_rule
from ...decode.rules.rule import Rule
from ...durable_files import write_durably
from ...inputs import records
from ..recorded_texts import RISKY, SAFE
from ..retrieval.passages import PassageIndex
from .experiment import Experiment, Prompt, Setting, check_unique, load_prompts
from .sweep import PAIR, SECTIONS, Method, Sweep

STEP_BYTES: Final = 221
"""Bytes of a step in a ledger, measured on the quickstart's pair."""
TEXT_BYTES: Final = 3000
"""Bytes of a text's row, and of its ledger without the steps."""
KINDS: Final = ("books", "bios", "news", "creative", "nonliteral", "questions")
"""Kinds of anchored prompts."""
INPUTS: Final = {
    "books": "copy-bench/data/data.literal.json",
    "nonliteral": "copy-bench/data/data.nonliteral.json",
    "questions": "copy-bench/data/data.qa.json",
}
"""The data set of a kind of prompts, from https://github.com/chentong0/copy-bench."""
REACHED: Final = 0.5
"""The share of its memory bandwidth that a GPU reaches in the forwards of a batch."""

ROOM: Final = 1.15
"""Memory of a pair per byte of its weights, with caches, logits and the CUDA context: 173 GB for
the 152 GB of Llama 3.1 70B and TinyComma with 48 texts at once (docs/reproduce.md)."""


def sweep_prompts(config: Sweep) -> list[Prompt]:
    """The prompts of all files of a sweep. Raises as `load_prompts` does."""
    files = [load_prompts(file)[: config.max_prompts or None] for file in config.prompt_files]
    prompts = list(itertools.chain.from_iterable(files))
    check_unique("prompt id", [prompt.id for prompt in prompts])
    return prompts


def sweep_settings(config: Sweep, blocked: Path | None = None) -> tuple[Setting, ...]:
    """p_s, p_r, then every setting of the methods, by the sections of the table.

    blocked: file of the prompts' passages, which MemFree blocks; None before they are known. Raises
    ValueError for unknown rules and settings and for two settings that are the same.
    """
    settings = [Setting(SAFE, SafeOnly(), method=SAFE), Setting(RISKY, RiskyOnly(), method=RISKY)]
    for method in sorted(config.methods, key=lambda method: SECTIONS.index(method.section)):
        settings += method_settings(method, blocked)
    check_unique("setting", [setting.file_name for setting in settings])
    for first, second in itertools.combinations(settings, 2):
        if first.rule == second.rule:
            raise ValueError(
                f"{first.name} and {second.name} are the same setting: give one method both figures"
            )
    return tuple(settings)


def method_settings(method: Method, blocked: Path | None = None) -> Iterator[Setting]:
    """A setting for each combination of the values that are lists, named by these values.

    blocked: as of `sweep_settings`. Raises ValueError for an unknown rule or setting.
    """
    swept = {name: value for name, value in method.settings.items() if isinstance(value, list)}
    for name, values in swept.items():
        if not values:
            raise ValueError(f"{method.label}: the list of {name} is empty")
    for combination in itertools.product(*swept.values()):
        chosen = dict(zip(swept, combination, strict=True))
        name = ", ".join([method.label, *(f"{n}={_shown(value)}" for n, value in chosen.items())])
        try:
            rule = _rule(method, method.settings | chosen, blocked)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        k = rule.k if method.is_swept and isinstance(rule, Anchored) else None
        yield Setting(name, rule, k, method.label)


def _rule(method: Method, settings: dict[str, Any], blocked: Path | None) -> Rule:
    if method.rule == "memfree" and blocked is None:
        settings = {"passages": [], **settings}
    elif method.rule == "memfree":  # a file, so that no ledger repeats all passages of the run
        settings = {"corpus": str(blocked), **settings}
    return make_rule(method.rule, settings)


def sweep_experiment(config: Sweep, folder: Path, index: PassageIndex | None) -> Experiment:
    """The experiment of a sweep, recorded in `folder`.

    index: of the corpus, if one is named. Raises as `sweep_prompts` and `sweep_settings` do.
    """
    prompts = sweep_prompts(config)
    if index is not None:
        prompts = _with_passages(prompts, index)
    blocked = None
    if passages := dict.fromkeys(prompt.passage for prompt in prompts if prompt.passage):
        blocked = folder / "blocked.jsonl"
        write_durably(blocked, "".join(json.dumps({"text": text}) + "\n" for text in passages))
    return Experiment(
        folder=folder,
        prompts=prompts,
        settings=sweep_settings(config, blocked),
        **config.options,
        held_out={
            name: [row["text"] for file in files for row in records(config.path("held_out", file))]
            for name, files in config.held_out.items()
        },
        extra=config.utility_set,
        task_folder=config.path("task_folder", config.task_folder) if config.tasks else Path(),
        tasks=tuple(config.tasks),
        index=index,
    )


def _with_passages(prompts: Sequence[Prompt], index: PassageIndex) -> list[Prompt]:
    """Prompts with the nearest passage of the corpus, or "", unless their file names one."""
    nearest = index.search([prompt.prompt for prompt in prompts])
    return [
        prompt
        if prompt.passage is not None
        else replace(prompt, passage=passage.text if passage else "")
        for prompt, passage in zip(prompts, nearest, strict=True)
    ]


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def sweep_plan(sweep: Sweep) -> str:
    """The settings, amount of text, placement of the pair, hours, disk and missing inputs.

    Raises ValueError for invalid prompts, rules or settings, and for weights that the GPUs of a
    process do not hold.
    """
    settings, missing = sweep_settings(sweep), missing_inputs(sweep)
    num_prompts, remark = _num_prompts(sweep, missing)
    num_seeds = len(sweep.seeds)
    num_texts = len(settings) * num_prompts * num_seeds
    rows = [
        [setting.name, setting.rule.name, "yes" if setting.rule.is_certified else "no"]
        for setting in settings
    ]
    count = (
        f"{len(settings)} settings x {num_prompts} prompts x {num_seeds} seeds = {num_texts} "
        f"generations of at most {sweep.max_new_tokens} tokens: {num_texts * sweep.max_new_tokens} "
        f"tokens (four bytes each at byte level){remark}"
    )
    num_steps = sweep.max_new_tokens * (1 if sweep.level == "token" else BYTES_PER_TOKEN)
    disk = num_texts * (num_steps * STEP_BYTES + TEXT_BYTES) / 1e9
    return "\n".join(
        [
            f"{text_tables.aligned(['setting', 'rule', 'certified'], rows)}\n\n{count}",
            *(() if missing.keys() & set(PAIR) else (placement_plan(sweep),)),
            *_time(
                sweep, settings, math.ceil(num_prompts * num_seeds / sweep.batch_size) * num_steps
            ),
            f"about {disk:,.1f} GB of texts and ledgers, two files a setting",
            *_missing_lines(sweep, missing),
        ]
    )


def missing_inputs(sweep: Sweep) -> dict[str, list[str]]:
    """Names of the missing inputs, by the key that names them.

    A model that a command would make in `inputs` is an input; any other may be an id of the Hub.
    """
    named = dict(sweep.files)
    if sweep.made_by:
        named |= {key: [getattr(sweep, key)] for key in PAIR}
    missing = {
        key: [name for name in dict.fromkeys(names) if find_path(name, sweep.places) is None]
        for key, names in named.items()
    }
    return {key: names for key, names in missing.items() if names}


def _num_prompts(sweep: Sweep, missing: dict[str, list[str]]) -> tuple[int, str]:
    """(number of prompts planned for, a remark if that is not their count)."""
    if "prompts" not in missing:
        return len(sweep_prompts(sweep)), ""
    most = sweep.max_prompts * len(sweep.files["prompts"])
    if known := min(filter(None, (sweep.num_prompts, most)), default=0):
        return known, "; prompts are missing, and counted as the config says"
    return 1, "; prompts are missing: all figures are for one of them"


def _missing_lines(sweep: Sweep, missing: dict[str, list[str]]) -> Iterator[str]:
    """Each missing input, and the command that makes it."""
    if not missing:
        return
    count = sum(map(len, missing.values()))
    yield f"\nmissing: {count} {'input' if count == 1 else 'inputs'}, before the sweep can begin"
    for key, names in missing.items():
        for name in names:
            file = sweep.places[-1] / name
            yield f"  {key}: {file}\n    {sweep.made_by or how_to_make(key, file)}"


def how_to_make(key: str, file: Path) -> str:
    """The command that makes an input, or its form if no command makes it."""
    name = file.name.split(".")[0]
    if key == "prompts":
        kind = name if name in KINDS else f"{{{','.join(KINDS)}}}"
        return f"anchored prompts --kind {kind} --input {INPUTS.get(name, 'DATA')} --output {file}"
    if key == "held_out":
        return (
            f"anchored tokenize --source {name} --heldout-fraction 0.001 ... writes such texts in "
            'its heldout/; any JSON lines {"text": ...} do, or none: held_out = { '
            f"{name} = [] }}"
        )
    if key == "passages":
        return 'JSON lines {"text": ...}, as the texts of the works that are prompted'
    return "YAML of a task of lm-eval"


def _time(sweep: Sweep, settings: tuple[Setting, ...], num_steps: int) -> Iterator[str]:
    """Hours of one process, if the weights are here and the GPUs' bandwidth is named.

    num_steps: of a setting; each reads the weights of every stream of its rule once.
    """
    sizes, bandwidth = _weights(sweep.models), sweep.placement.gpu_bandwidth
    read = [stream.model for setting in settings for stream in setting.rule.streams.values()]
    yield f"{num_steps * len(read):,} forwards of a batch, where bytes take one each"
    if sizes is not None and bandwidth:
        seconds = num_steps * sum(sizes[model] for model in read) / (REACHED * bandwidth * 1e9)
        slow = dict.fromkeys(each.rule.name for each in settings if each.rule.looks_back)
        more = f"; {', '.join(slow)} step from the host and take longer" if slow else ""
        yield f"about {seconds / 3600:,.1f} hours of one process, from the bytes of weights{more}"


def placement_plan(sweep: Sweep) -> str:
    """The placement of the pair, in words, and the memory that it takes.

    Raises: ValueError for weights that the GPUs of a process do not hold.
    """
    placement, models = sweep.placement, sweep.models
    options = "".join(f", {name} = {value}" for name, value in placement.options.items())
    device = models.device or "CUDA where there is one"
    line = f"each process: {placement.gpus} GPU(s), device = {device}{options}"
    sizes = _weights(models)
    if models.device == "cpu" or sizes is None or models.risky_quantization:
        return line
    num_bytes, memory = sum(sizes.values()), _gpu_memory() or placement.gpu_memory
    needed = ROOM * num_bytes / 1e9
    weights = f"weights of {num_bytes / 1e9:,.1f} GB take about {needed:,.1f} GB"
    if memory and needed > placement.gpus * memory:
        raise ValueError(
            f"{weights}, and {placement.gpus} GPU(s) of {memory:,.1f} GB hold "
            f"{placement.gpus * memory:,.1f}: raise placement.gpus, or quantize the risky model"
        )
    return f"{line}; {weights}"


def _weights(models: ModelOptions) -> dict[str, int] | None:
    """Bytes of both models' safetensors; None where one is still on the Hub."""
    sizes: dict[str, int] = {}
    for name, model in models.locations.items():
        if isinstance(folder := model_location(model), str):
            return None
        sizes[name] = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return sizes


def _gpu_memory() -> float:
    """GB of the first GPU; 0 without one."""
    import torch

    has_gpu = torch.cuda.is_available()
    return float(torch.cuda.get_device_properties(0).total_memory) / 1e9 if has_gpu else 0.0
