"""Decoding methods beside the risky model alone, in the paper's format."""

import math
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from anchored import Anchored, Decoder, ModelPair, RiskyOnly, text_tables
from anchored.decode.engine.prompts import prefaced_prompt
from anchored.decode.rules.rule import Rule, takes_passage
from anchored.tools.commands.options import check_presence

from .baselines import ModelAlone, official_module
from .flops import token_cost
from .methods import Speed, bench_rules, speeds
from .options import BenchDecodeConfig, method_names
from .random_inputs import (
    configured_pair,
    matrix_weights,
    ordinary_words,
    random_prompts,
    random_words,
)
from .timing import PROCESS, WALL, timed

COPY_BYTES = 1 << 28
NUM_COPIES = 5
RISKY_ALONE, OFFICIAL = "risky_alone", "official"
WARPERS: dict[str, Any] = {"temperature": 0.7, "repetition_penalty": 1.1}
"""Of both packages; the risky model alone has the temperature only."""
NUM_SWAPPED = 110
"""The words that TokenSwap swaps are of the first tokens, about as many as the paper's list has."""
PREFACE_TOKENS = 256
"""More than a system prompt has."""
WIDTH = 14
TITLES = (
    *("batch", "engine", "TTFT ms", "tokens/s", "error", "slowdown", "error", "step GFLOP"),
    *("all GFLOP", "x bandwidth", "x official", "peak GB"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeRow:
    """One engine at one batch size."""

    batch_size: int
    engine: str
    speed: Speed
    """Of all requests together."""
    slowdown: tuple[float, float]
    """The risky model's speed alone over this one, in the same run, and its deviation."""
    cost: dict[str, float]
    """FLOPs a token, see `token_cost`."""
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
            f"{self.speed.first_ms:.1f}",
            f"{self.speed.mean:.1f}",
            f"{self.speed.error:.1f}",
            *(f"{number:.2f}" for number in self.slowdown),
            f"{self.cost['steps'] / 1e9:.3f}",
            f"{sum(self.cost.values()) / 1e9:.3f}",
            f"{self.over_bandwidth:.2f}",
            "-" if math.isnan(self.over_official) else f"{self.over_official:.2f}",
            f"{self.peak_bytes / 1e9:.2f}",
        )


@dataclass(frozen=True, slots=True)
class Engine:
    """A way to decode."""

    name: str
    rule: Rule
    """Whose streams a step reads."""
    prompt_tokens: dict[str, int]
    """By stream, what stands before a prompt included."""
    generate: Callable[[int], int]
    """Generates so many tokens for every prompt, returns how many altogether."""

    def cost(self, pair: ModelPair, new_tokens: int) -> dict[str, float]:
        """FLOPs a token."""
        return token_cost(pair, self.rule, prompt_tokens=self.prompt_tokens, new_tokens=new_tokens)

    def step_bytes(self, pair: ModelPair) -> int:
        """Bytes of weights that a step must read: a model's once, however many streams it has."""
        models = {reading.model for reading in self.rule.streams.values()}
        return sum(step_bytes(pair.models[name]) for name in models)


def run(config: BenchDecodeConfig) -> int:
    """Print one table and return 0."""
    check_presence(config.device)
    print(
        f"{config} ({torch.get_num_threads()} threads), torch {torch.__version__}, "
        f"{config.prompt_tokens} prompt tokens, {config.new_tokens} new ones, k = {config.k}, "
        f"{config.runs} runs, {config.clock} clock"
    )
    rows = (row.cells() for row in decode_rows(config))
    text_tables.print_lines(chain([TITLES], rows), WIDTH)
    return 0


@torch.inference_mode()
def decode_rows(config: BenchDecodeConfig) -> Iterator[DecodeRow]:
    """For each batch size the risky model alone, then the methods; they take turns in every run."""
    longest = config.prompt_tokens + config.new_tokens + config.passage_tokens + PREFACE_TOKENS
    pair = configured_pair(config, longest)
    bandwidth = copy_bytes_per_s(config.device)
    for batch_size in config.batch_sizes:
        engines = _engines(pair, config, batch_size)
        found = speeds(
            {engine.name: engine.generate for engine in engines},
            config.new_tokens,
            runs=config.runs,
            clock=PROCESS if config.clock == "cpu" else WALL,
            device=config.device,
        )
        official = found[OFFICIAL].mean if OFFICIAL in found else math.nan
        for engine in engines:
            if engine.name == OFFICIAL:  # what the others are compared with, no row of its own
                continue
            speed = found[engine.name]
            step_s = engine.step_bytes(pair) / bandwidth
            yield DecodeRow(
                batch_size=batch_size,
                engine=engine.name,
                speed=speed,
                slowdown=speed.slowdown(found[RISKY_ALONE]),
                cost=engine.cost(pair, config.new_tokens),
                over_bandwidth=speed.mean * step_s / batch_size,
                over_official=speed.mean / official,
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
    """The authors' package where it is installed, the risky model alone, the methods."""
    prompts = random_prompts(batch_size, config.prompt_tokens, config.vocab_size)
    alone = ModelAlone(
        pair,
        "risky",
        num_rows=batch_size,
        max_length=config.prompt_tokens + config.new_tokens,
        on_device=config.device.startswith("cuda"),
    )
    passages = random_words(batch_size, config.passage_tokens, config.vocab_size)
    rules = bench_rules(
        k=config.k,
        horizon=config.new_tokens,
        passages=passages,
        words=ordinary_words(config.vocab_size, most=NUM_SWAPPED),
    )
    length = {"risky": config.prompt_tokens}
    risky_only = RiskyOnly(compared=False)
    return [
        *_official_engines(pair, config, prompts),
        Engine(RISKY_ALONE, risky_only, length, partial(alone.generate, prompts)),
        *(
            _method(name, Decoder(pair, rules[name], batch_size=batch_size), prompts, passages)
            for name in method_names(config.methods)
        ),
    ]


def _method(name: str, decoder: Decoder, prompts: list[list[int]], passages: list[str]) -> Engine:
    has_passages = takes_passage(decoder.rule)
    asked: dict[str, Any] = {"passages": passages} if has_passages else {}

    def generate(num_tokens: int) -> int:
        results = decoder.generate(prompts, max_new_tokens=num_tokens, **asked, **WARPERS)
        return sum(len(result.token_ids) for result in results)

    passage = passages[0] if has_passages else None
    read = prefaced_prompt(decoder.level, decoder.rule, prompts[0], passage)
    lengths = {own: len(read.get(own, prompts[0])) for own in decoder.rule.streams}
    return Engine(name, decoder.rule, lengths, generate)


def _official_engines(
    pair: ModelPair, config: BenchDecodeConfig, prompts: list[list[int]]
) -> Iterator[Engine]:
    """The authors' package with the same pair, warpers and budget; none if not installed."""
    module = official_module()
    if module is None:
        return
    factory = module.AnchoredDecodingFactory(
        pair.safe, pair.risky, pair.tokenizer, k_radius=config.k, use_prefix_debt=False
    )

    def generate(num_tokens: int) -> int:
        generation = GenerationConfig(
            max_new_tokens=num_tokens, do_sample=True, pad_token_id=2, **WARPERS
        )
        input_ids = torch.tensor(prompts, device=config.device)
        sequences = factory.generate(input_ids=input_ids, generation_config=generation).sequences
        return int((sequences[:, input_ids.shape[1] :] != 2).sum())

    rule = Anchored(k=config.k, debt="none")
    lengths = dict.fromkeys(rule.streams, config.prompt_tokens)
    yield Engine(OFFICIAL, rule, lengths, generate)


def _peak_bytes(device: str) -> int:
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Linux counts in KiB
