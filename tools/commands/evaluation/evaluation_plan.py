"""What an evaluation costs: its generations, the memory of its models, and the time of both."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from anchored import text_tables
from anchored.configs.config_file import read_config_file
from anchored.decode.byte.byte_level import BYTES_PER_TOKEN
from anchored.eval.experiments.sweep import Sweep, load_prompts, load_sweep, sweep_settings
from anchored.eval.harness.comparison import load_comparison

from ..files import check_input
from ..training.training_options import DryRunConfig
from .compare import comparison_plan
from .model_sizes import BYTES_PER_WEIGHT, OFFLINE, ModelSize, model_size

GB = 1e9
WORKSPACE = 1.1
"""Over weights, caches and logits: what the allocator and the kernels' scratch take. Assumed."""
LOGIT_BYTES = 4 + 8
"""Of one row of one model: float32, and a float64 copy where it is judged."""
CHARACTERS_PER_TOKEN = 4
CONTEXT_TOKENS = 2048
"""Longest question of a benchmark, with its examples. Assumed."""
_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """What is generated, in symbols of the level."""

    num_settings: int
    num_texts: int
    """Of one setting: prompts by seeds."""
    prompt_tokens: int
    """Longest prompt, about."""
    new_symbols: int
    """Of one text."""
    batch_size: int
    is_byte: bool

    @property
    def new_tokens(self) -> int:
        """Of one text, about."""
        return math.ceil(self.new_symbols / (BYTES_PER_TOKEN if self.is_byte else 1))


def evaluation_plan(config: DryRunConfig) -> str:
    """Lines about a sweep or a comparison; FileNotFoundError or ValueError, in one line, for what
    cannot be run: a name, a value, or models that need more memory than the GPUs have.
    """
    is_sweep = "methods" in read_config_file(config.config)
    return _sweep_plan(config) if is_sweep else _comparison_plan(config)


def _comparison_plan(config: DryRunConfig) -> str:
    comparison = load_comparison(config.config)
    lines = [f"{config.config.stem}: {comparison_plan(comparison)}"]
    found = {name: model_size(name) for entry in comparison.models for name in entry.models}
    lines.append(_model_table({name: (name, *own) for name, own in found.items()}))
    load = Load(
        num_settings=1,
        num_texts=1,
        prompt_tokens=CONTEXT_TOKENS,
        new_symbols=0,
        batch_size=comparison.batch_size,
        is_byte=False,
    )
    for entry in comparison.models:
        sizes = {name: found[name][0] for name in entry.models}
        lines.append(f"{entry.label}: {memory_line(sizes, load, config)}")
    return "\n".join(lines)


def _sweep_plan(config: DryRunConfig) -> str:
    sweep = load_sweep(config.config, inputs=config.inputs)
    for file in sweep.files:
        check_input(file)
    sizes = {name: model_size(sweep.model(own)) for name, own in _models(sweep).items()}
    load = _load(sweep)
    lines = [
        f"{config.config.stem}: {load.num_settings} settings x {load.num_texts} texts of at most "
        f"{load.new_symbols} {'bytes' if load.is_byte else 'tokens'} after prompts of about "
        f"{load.prompt_tokens} tokens, {load.batch_size} together",
        _model_table({name: (own, *sizes[name]) for name, own in _models(sweep).items()}),
        memory_line({name: size for name, (size, _) in sizes.items()}, load, config),
        time_line({name: size for name, (size, _) in sizes.items()}, load, config),
    ]
    return "\n".join(lines)


def _models(sweep: Sweep) -> dict[str, str]:
    return {"safe": sweep.safe, "risky": sweep.risky}


def _load(sweep: Sweep) -> Load:
    prompts = load_prompts(sweep.path(sweep.prompts))[: sweep.max_prompts or None]
    is_byte = sweep.level == "byte"
    return Load(
        num_settings=len(sweep_settings(sweep, passages=[])),
        num_texts=len(prompts) * len(sweep.seeds),
        prompt_tokens=math.ceil(max(len(p.prompt) for p in prompts) / CHARACTERS_PER_TOKEN),
        new_symbols=sweep.max_new_tokens * (BYTES_PER_TOKEN if is_byte else 1),
        batch_size=sweep.batch_size,
        is_byte=is_byte,
    )


def _model_table(models: Mapping[str, tuple[str, ModelSize, str]]) -> str:
    rows = [
        [name, own, f"{size.weights / GB:.2f} G", f"{size.active_weights / GB:.2f} G", source]
        for name, (own, size, source) in models.items()
    ]
    table = text_tables.aligned(["", "model", "weights", "a token", "size from"], rows)
    if any(source == OFFLINE for _, _, source in models.values()):
        table += "\nthe Hub does not answer: ids are checked by their form, sizes are the table's"
    return table


def memory_line(sizes: Mapping[str, ModelSize], load: Load, config: DryRunConfig) -> str:
    """Memory of the models and of a batch; ValueError where the GPUs have less."""
    tokens = load.batch_size * (load.prompt_tokens + load.new_tokens)
    weights = sum(size.weight_bytes for size in sizes.values())
    cache = tokens * sum(size.cache_bytes_per_token for size in sizes.values())
    logits = LOGIT_BYTES * load.batch_size * sum(size.vocab_size for size in sizes.values())
    needed = WORKSPACE * (weights + cache + logits)
    memory = config.gpus * config.gpu_gigabytes * GB
    parts = f"{needed / GB:.0f} GB ({weights / GB:.1f} of weights, {cache / GB:.1f} of caches)"
    if needed > memory:
        raise ValueError(
            f"{config.config.name} needs {parts}; {config.gpus} GPUs of "
            f"{config.gpu_gigabytes:g} GB have {memory / GB:.0f}"
        )
    fewest = math.ceil(needed / (config.gpu_gigabytes * GB))
    return f"memory, estimated: {parts}: {fewest} GPUs of {config.gpu_gigabytes:g} GB or more"


def time_line(sizes: Mapping[str, ModelSize], load: Load, config: DryRunConfig) -> str:
    """How long decoding takes where a step reads both models' weights once for a whole batch.

    One forward a token, at byte level one a byte; a pair is as fast as one GPU however
    many hold it.
    2 N FLOPs a token: paper, section on efficiency.
    """
    seconds = 0.0
    for size in sizes.values():
        # A batch reads every expert that one of its texts asks for.
        num_read = min(size.weights, load.batch_size * size.active_weights)
        read_s = BYTES_PER_WEIGHT * num_read / (config.bandwidth * config.mfu)
        flops = 2 * size.active_weights
        step_s = max(read_s, load.batch_size * flops / (config.peak_flops * config.mfu))
        prompt_s = load.prompt_tokens * flops / (config.peak_flops * config.mfu)
        seconds += load.new_symbols * step_s / load.batch_size + prompt_s
    hours = load.num_settings * load.num_texts * seconds / _SECONDS_PER_HOUR
    return (
        f"time at {config.mfu:.0%} of {config.bandwidth / 1e12:g} TB/s and of "
        f"{config.peak_flops / 1e12:g} TFLOP/s, one pair: {hours:.1f} hours at most, as every "
        "setting is counted as running both models to the last symbol"
    )
