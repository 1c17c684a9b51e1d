"""Paired decoding against each model alone."""

import math
import resource
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from anchored import Anchored, Decoder, ModelPair, SafeOnly, text_tables
from anchored.decode.rules.rule import Rule
from anchored.tools.commands.options import check_presence

from .baselines import ModelAlone, official_module
from .options import BenchDecodeConfig
from .random_inputs import configured_pair, matrix_weights, random_prompts
from .timing import deviation, timed

COPY_BYTES = 1 << 28
NUM_COPIES = 5
RISKY_ALONE, OFFICIAL = "risky_alone", "official"
WARPERS: dict[str, Any] = {"temperature": 0.7, "repetition_penalty": 1.1}
"""Of both packages; the risky model alone has the temperature only."""
WIDTH = 14
TITLES = (
    *("batch", "engine", "TTFT ms", "tokens/s", "error", "x risky alone", "x bandwidth"),
    *("x official", "peak GB"),
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

    def cells(self) -> tuple[str, ...]:
        """Of the table, in the order of the titles."""
        return (
            str(self.batch_size),
            self.engine,
            f"{1e3 * self.first_token_s:.1f}",
            f"{self.tokens_per_s:.1f}",
            f"{self.error:.1f}",
            f"{self.over_risky:.2f}",
            f"{self.over_bandwidth:.2f}",
            "-" if math.isnan(self.over_official) else f"{self.over_official:.2f}",
            f"{self.peak_bytes / 1e9:.2f}",
        )


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
        f"{config} ({torch.get_num_threads()} threads), torch {torch.__version__}, "
        f"{config.prompt_tokens} prompt tokens, {config.new_tokens} new ones, k = {config.k}, "
        f"{config.runs} runs"
    )
    rows = (row.cells() for row in decode_rows(config))
    text_tables.print_lines(chain([TITLES], rows), WIDTH)
    return 0


@torch.inference_mode()
def decode_rows(config: BenchDecodeConfig) -> Iterator[DecodeRow]:
    """Rows as they are measured: for each batch size the risky model alone, then the decoders."""
    pair = configured_pair(config, config.prompt_tokens + config.new_tokens)
    bandwidth = copy_bytes_per_s(config.device)
    for batch_size in config.batch_sizes:
        official_speed = risky_speed = math.nan
        for engine in _engines(pair, config, batch_size):
            first_token_s, speeds = _timing(config, engine, batch_size)
            speed = statistics.mean(speeds)
            if engine.name == OFFICIAL:  # what the others are compared with, no row of its own
                official_speed = speed
                continue
            if engine.name == RISKY_ALONE:
                risky_speed = speed
            step_s = sum(step_bytes(pair.models[name]) for name in engine.models) / bandwidth
            yield DecodeRow(
                batch_size=batch_size,
                engine=engine.name,
                first_token_s=first_token_s,
                tokens_per_s=speed,
                error=deviation(speeds),
                over_risky=speed / risky_speed,
                over_bandwidth=speed * step_s / batch_size,
                over_official=speed / official_speed,
                peak_bytes=_peak_bytes(config.device),
            )


def copy_bytes_per_s(device: str) -> float:
    """Bytes read or written a second by a large copy on the device: the fastest of a few."""
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = [timed(lambda: target.copy_(source), device=device)[0] for _ in range(NUM_COPIES)]
    return 2 * COPY_BYTES / min(seconds)


def step_bytes(model: PreTrainedModel) -> int:
    """Bytes of weights that one decoding step must read."""
    return sum(weight.numel() * weight.element_size() for weight in matrix_weights(model))


def _engines(pair: ModelPair, config: BenchDecodeConfig, batch_size: int) -> list[Engine]:
    """The authors' package where it is installed, the risky model alone, the decoders."""
    alone = ModelAlone(
        pair,
        "risky",
        num_rows=batch_size,
        max_length=config.prompt_tokens + config.new_tokens,
        on_device=config.device.startswith("cuda"),
    )
    rules: dict[str, tuple[Rule, tuple[str, ...]]] = {
        "safe_only": (SafeOnly(), ("safe",)),
        "anchored": (Anchored(k=config.k, debt="none"), ("safe", "risky")),
        "anchored_inf": (Anchored(k=config.k, debt="none", divergence="max"), ("safe", "risky")),
    }
    return [
        *_official_engines(pair, config),
        Engine(RISKY_ALONE, ("risky",), alone.generate),
        *(
            Engine(name, models, partial(_generate, Decoder(pair, rule, batch_size=batch_size)))
            for name, (rule, models) in rules.items()
        ),
    ]


def _generate(decoder: Decoder, prompts: list[list[int]], num_tokens: int) -> int:
    results = decoder.generate(prompts, max_new_tokens=num_tokens, **WARPERS)
    return sum(len(result.token_ids) for result in results)


def _official_engines(pair: ModelPair, config: BenchDecodeConfig) -> Iterator[Engine]:
    """The authors' package with the same pair, warpers and budget; none if not installed."""
    module = official_module()
    if module is None:
        return
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

    yield Engine(OFFICIAL, ("safe", "risky"), generate)


def _timing(
    config: BenchDecodeConfig, engine: Engine, batch_size: int
) -> tuple[float, list[float]]:
    """(median seconds to the first token, tokens/s after it in each run), after a warm-up.

    Source: paper, section on efficiency.
    """
    prompts = random_prompts(batch_size, config.prompt_tokens, config.vocab_size)
    engine.generate(prompts, config.new_tokens)
    first_s, speeds = [], []
    for _ in range(config.runs):
        (one_s, one), (whole_s, whole) = (
            timed(partial(engine.generate, prompts, num_tokens), device=config.device)
            for num_tokens in (1, config.new_tokens)
        )
        first_s.append(one_s)
        speeds.append((whole - one) / (whole_s - one_s))
    return statistics.median(first_s), speeds


def _peak_bytes(device: str) -> int:
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts in KiB
