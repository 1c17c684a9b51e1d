"""Paired decoding against each model alone."""

import math
import resource
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from anchored import Anchored, Decoder, ModelPair, SafeOnly, text_tables
from anchored.decode.rules.rule import Rule
from anchored.tools.commands.options import check_presence

from .baselines import ModelAlone, official_module
from .options import BenchDecodeConfig
from .random_inputs import random_pair, random_prompts
from .timing import deviation, timed

COPY_BYTES = 1 << 28
NUM_COPIES = 5
RISKY_ALONE = "risky_alone"
WARPERS: dict[str, Any] = {"temperature": 0.7, "repetition_penalty": 1.1}
"""Of both packages; the risky model alone has the temperature only."""
WIDTH = 14
TITLES = (
    "batch",
    "engine",
    "TTFT ms",
    "tokens/s",
    "error",
    "x risky alone",
    "x bandwidth",
    "x official",
    "peak GB",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeRow:
    """One engine at one batch size."""

    batch_size: int
    engine: str
    first_token_s: float
    """Median time to the first token: the prompt and one step."""
    tokens_per_s: float
    """Mean speed after the first token, all requests together."""
    error: float
    """Sample standard deviation of that speed over the runs; nan for one run."""
    over_risky: float
    """Speed as a share of the risky model's alone, in this engine and run."""
    over_bandwidth: float
    """Speed as a share of what reading the weights once a step at copy bandwidth would allow."""
    over_official: float
    """Speed as a multiple of the authors' package; nan where it is not installed."""
    peak_bytes: int
    """Device memory on CUDA, else the process's largest resident size so far."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A way to decode: generates tokens for every prompt, returns how many altogether."""

    name: str
    models: tuple[str, ...]
    """Those whose weights a step reads."""
    generate: Callable[[list[list[int]], int], int]


def run(config: BenchDecodeConfig) -> int:
    """Print one table and return 0."""
    check_presence(config.device)
    print(
        f"{config.safe} + {config.risky}, V = {config.vocab_size}, {config.dtype} on "
        f"{config.device} ({torch.get_num_threads()} threads), torch {torch.__version__}, "
        f"{config.prompt_tokens} prompt tokens, {config.new_tokens} new ones, k = {config.k}, "
        f"{config.runs} runs"
    )
    print(text_tables.line(TITLES, WIDTH))
    for row in decode_rows(config):
        print(text_tables.line(_cells(row), WIDTH), flush=True)
    return 0


@torch.inference_mode()
def decode_rows(config: BenchDecodeConfig) -> Iterator[DecodeRow]:
    """Rows as they are measured: for each batch size the risky model alone, then the decoders."""
    pair = random_pair(
        config.safe,
        config.risky,
        vocab_size=config.vocab_size,
        context_length=config.prompt_tokens + config.new_tokens,
        dtype=getattr(torch, config.dtype),
        device=config.device,
    )
    bandwidth = copy_bytes_per_s(config.device)
    for batch_size in config.batch_sizes:
        official = _timing(config, _official_engine(pair, config), batch_size)
        risky_speed = math.nan
        for engine in _engines(pair, config, batch_size):
            timing = _timing(config, engine, batch_size)
            if engine.name == RISKY_ALONE:
                risky_speed = timing.tokens_per_s
            step_s = sum(step_bytes(pair.models[name]) for name in engine.models) / bandwidth
            yield DecodeRow(
                batch_size=batch_size,
                engine=engine.name,
                first_token_s=timing.first_token_s,
                tokens_per_s=timing.tokens_per_s,
                error=timing.error,
                over_risky=timing.tokens_per_s / risky_speed,
                over_bandwidth=timing.tokens_per_s * step_s / batch_size,
                over_official=timing.tokens_per_s / official.tokens_per_s,
                peak_bytes=_peak_bytes(config.device),
            )


def copy_bytes_per_s(device: str) -> float:
    """Bytes read or written a second by a large copy on the device: the fastest of a few."""
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = [timed(lambda: target.copy_(source), device=device)[0] for _ in range(NUM_COPIES)]
    return 2 * COPY_BYTES / min(seconds)


def step_bytes(model: PreTrainedModel) -> int:
    """Bytes of weights that one decoding step must read: all but the input embeddings' table."""
    (table,) = model.get_input_embeddings().parameters()
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    return total - table.numel() * table.element_size()


def _engines(pair: ModelPair, config: BenchDecodeConfig, batch_size: int) -> list[Engine]:
    rules: dict[str, tuple[Rule, tuple[str, ...]]] = {
        "safe_only": (SafeOnly(), ("safe",)),
        "anchored": (Anchored(k=config.k, debt="none"), ("safe", "risky")),
        "anchored_inf": (Anchored(k=config.k, debt="none", divergence="max"), ("safe", "risky")),
    }
    return [
        Engine(RISKY_ALONE, ("risky",), _risky_alone(pair, config, batch_size).generate),
        *(
            Engine(name, models, partial(_generate, Decoder(pair, rule, batch_size=batch_size)))
            for name, (rule, models) in rules.items()
        ),
    ]


def _risky_alone(pair: ModelPair, config: BenchDecodeConfig, batch_size: int) -> ModelAlone:
    return ModelAlone(
        pair,
        "risky",
        num_rows=batch_size,
        max_length=config.prompt_tokens + config.new_tokens,
        on_device=config.device.startswith("cuda"),
    )


def _generate(decoder: Decoder, prompts: list[list[int]], num_tokens: int) -> int:
    results = decoder.generate(prompts, max_new_tokens=num_tokens, **WARPERS)
    return sum(len(result.token_ids) for result in results)


def _official_engine(pair: ModelPair, config: BenchDecodeConfig) -> Engine | None:
    """The authors' package with the same pair, warpers and budget; None if not installed."""
    module = official_module()
    if module is None:
        return None
    factory = module.AnchoredDecodingFactory(
        pair.safe, pair.risky, pair.tokenizer, k_radius=config.k, use_prefix_debt=False
    )

    def generate(prompts: list[list[int]], num_tokens: int) -> int:
        generation = GenerationConfig(
            max_new_tokens=num_tokens, do_sample=True, pad_token_id=2, **WARPERS
        )
        input_ids = torch.tensor(prompts, device=config.device)
        sequences = factory.generate(input_ids=input_ids, generation_config=generation).sequences
        return int((sequences[:, input_ids.shape[1] :] != 2).sum())

    return Engine("official", ("safe", "risky"), generate)


@dataclass(frozen=True, slots=True)
class _Timing:
    first_token_s: float
    tokens_per_s: float
    error: float


def _timing(config: BenchDecodeConfig, engine: Engine | None, batch_size: int) -> _Timing:
    """The paper's method: what follows the first token, after a warm-up."""
    if engine is None:
        return _Timing(math.nan, math.nan, math.nan)
    prompts = random_prompts(batch_size, config.prompt_tokens, config.vocab_size)
    engine.generate(prompts, config.new_tokens)
    first_s, speeds = [], []
    for _ in range(config.runs):
        one_s, one = timed(partial(engine.generate, prompts, 1), device=config.device)
        whole_s, whole = timed(
            partial(engine.generate, prompts, config.new_tokens), device=config.device
        )
        first_s.append(one_s)
        speeds.append((whole - one) / (whole_s - one_s))
    return _Timing(statistics.median(first_s), statistics.mean(speeds), deviation(speeds))


def _peak_bytes(device: str) -> int:
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts in KiB


def _cells(row: DecodeRow) -> tuple[str, ...]:
    return (
        str(row.batch_size),
        row.engine,
        f"{1e3 * row.first_token_s:.1f}",
        f"{row.tokens_per_s:.1f}",
        f"{row.error:.1f}",
        f"{row.over_risky:.2f}",
        f"{row.over_bandwidth:.2f}",
        "-" if math.isnan(row.over_official) else f"{row.over_official:.2f}",
        f"{row.peak_bytes / 1e9:.2f}",
    )
