"""Speculative against plain decoding: anchored bench speculate --safe DIR --risky DIR"""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Literal, TypeVar

import torch

from anchored import Anchored, Decoder, Generation, ModelPair, RiskyOnly
from anchored.decode.row_stream import RowStream
from anchored.decode.rules.rule import Rule
from anchored.decode.speculation import Speculate
from anchored.tools.acceptance import measured_acceptance
from anchored.tools.bench_decode import random_prompts, timed
from anchored.tools.model_alone import ModelAlone
from anchored.tools.model_options import ModelOptions
from anchored.tools.quickstart.generation import prompts as quickstart_prompts
from anchored.tools.quickstart.preset import load_preset
from anchored.tools.random_pair import Shape, random_pair
from anchored.tools.round_costs import Costs, predicted_ratio

T = TypeVar("T")
RANDOM_VOCAB = 2048
RANDOM_PROMPT_TOKENS = 32
TITLES = (
    "k",
    "draft",
    "risky fwd",
    "tok/fwd",
    "kept",
    "1 - TV",
    "+-",
    "bound",
    "tokens/s",
    "error",
    "x plain",
    "x risky",
    "predicted",
    "flips",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchSpeculateConfig:
    """What `anchored bench speculate` measures."""

    safe: Path | None = None
    """Folder of the safe model; without folders, a pair of random weights."""
    risky: Path | None = None
    """Folder of the risky model."""
    random_risky: Shape = "small"
    """Shape of a risky model of random weights, beside a tiny safe one."""
    ks: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 4.0)
    """Nats a token."""
    drafts: tuple[str, ...] = ("1", "2", "4", "auto")
    """Draft lengths beside plain decoding, which comes first."""
    num_prompts: int = 4
    """Requests of a timed run."""
    batch_size: int = 1
    """Requests that are decoded together."""
    new_tokens: int = 64
    """Tokens of each request."""
    acceptance_prompts: int = 16
    """Requests over which acceptance and 1 - TV are measured."""
    runs: int = 3
    clock: Literal["wall", "cpu"] = "wall"
    """cpu counts this process's own seconds: for a CPU that other programs use at the same time."""
    device: str = "cpu"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        for name in ("num_prompts", "batch_size", "acceptance_prompts", "runs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if self.new_tokens < 2:
            raise ValueError(f"new_tokens must be >= 2, got {self.new_tokens}")
        if (self.safe is None) != (self.risky is None):
            raise ValueError("give both folders, safe and risky, or neither")
        if self.clock == "cpu" and self.device != "cpu":
            raise ValueError(f"clock cpu does not see {self.device}")

    def timed(self, work: Callable[[], T]) -> tuple[float, T]:
        """(seconds by this clock, result) of `work`."""
        if self.clock == "wall":
            return timed(self.device, work)
        start = time.process_time()
        result = work()
        return time.process_time() - start, result


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """What one run gave."""

    num_tokens: int
    risky_forwards: int
    """Prompts' own forwards left out."""
    texts: list[list[int]]
    """Tokens by request; empty where nothing is compared with them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Tokens a second of several runs, and what the last one gave."""

    tokens_per_s: float
    error: float
    """Sample standard deviation over the runs; nan for one run."""
    drawn: Drawn

    @property
    def tokens_per_forward(self) -> float:
        return self.drawn.num_tokens / max(self.drawn.risky_forwards, 1)


@torch.inference_mode()
def run(config: BenchSpeculateConfig) -> int:
    """Print one table and return 0."""
    pair, prompts = _pair(config), _prompts(config)
    lengths = [int(draft) for draft in config.drafts if draft != "auto"]
    costs = measured_costs(config, pair, lengths)
    risky_alone = _speed(config, partial(_risky_alone, config, pair), prompts)
    print(_headline(config, pair, costs, risky_alone))
    print(_line(TITLES))
    for k in config.ks:
        acceptance = measured_acceptance(
            pair, Anchored(k=k), _prompts(config, config.acceptance_prompts), config.new_tokens
        )
        shown = (
            f"{acceptance.observed:.3f}",
            f"{acceptance.expected:.3f}",
            f"{acceptance.error:.3f}",
            f"{max(0.0, 1.0 - math.sqrt(k / 2)):.3f}",
        )
        for cells in _rows(
            config, pair, Anchored(k=k), prompts, costs, risky_alone, acceptance.expected
        ):
            print(_line((f"{k:g}", *cells[:3], *shown, *cells[3:])), flush=True)
    for cells in _rows(config, pair, RiskyOnly(), prompts, costs, risky_alone, math.nan):
        print(_line(("p_r", *cells[:3], *["-"] * 4, *cells[3:])), flush=True)
    return 0


def measured_costs(config: BenchSpeculateConfig, pair: ModelPair, lengths: list[int]) -> Costs:
    """Median seconds of a safe forward of one column and risky ones of 1 and length + 1."""
    return Costs(
        safe_s=_forward_s(config, pair, "safe", 1),
        risky_s={n: _forward_s(config, pair, "risky", n) for n in [1, *(g + 1 for g in lengths)]},
    )


def _forward_s(config: BenchSpeculateConfig, pair: ModelPair, name: str, columns: int) -> float:
    stream, rows = _stream(config, pair, name, columns), list(range(config.batch_size))
    stream.read([[0] * RANDOM_PROMPT_TOKENS] * len(rows), rows)
    tokens = [[2] * columns] * len(rows)
    seconds = []
    for _ in range(20 * config.runs):
        seconds.append(config.timed(lambda: stream.feed_ends(rows, tokens, columns))[0])
        for row in rows:
            stream.roll_back(row, RANDOM_PROMPT_TOKENS)
    return statistics.median(seconds)


def _stream(config: BenchSpeculateConfig, pair: ModelPair, name: str, more: int) -> RowStream:
    attention = pair.row_attention[name]
    if attention is None:
        raise ValueError(f"the {name} model decodes in whole batches: it cannot speculate")
    return RowStream(
        pair.models[name],
        attention,
        num_rows=config.batch_size,
        max_length=512 + config.new_tokens + more,
        output=pair.output_layers[name],
    )


def _rows(
    config: BenchSpeculateConfig,
    pair: ModelPair,
    rule: Rule,
    prompts: list[str | list[int]],
    costs: Costs,
    risky_alone: Speed,
    kept: float,
) -> Iterator[tuple[str, ...]]:
    """Cells of plain decoding and of each draft length."""
    plain: Speed | None = None
    for draft in ("off", *config.drafts):
        speculate: Speculate = draft if draft in ("off", "auto") else int(draft)  # type: ignore[assignment]
        decoder = Decoder(pair, rule, batch_size=config.batch_size, speculate=speculate)
        speed = _speed(config, partial(_generate, config, decoder), prompts)
        plain = plain or speed
        is_fixed = draft not in ("off", "auto") and not math.isnan(kept)
        yield (
            draft,
            str(speed.drawn.risky_forwards),
            f"{speed.tokens_per_forward:.2f}",
            f"{speed.tokens_per_s:.1f}",
            f"{speed.error:.1f}",
            f"{speed.tokens_per_s / plain.tokens_per_s:.2f}",
            f"{speed.tokens_per_s / risky_alone.tokens_per_s:.2f}",
            f"{predicted_ratio(costs, int(draft), kept):.2f}" if is_fixed else "-",
            f"{flips_per_1000(plain.drawn.texts, speed.drawn.texts):.1f}",
        )


def flips_per_1000(plain: list[list[int]], drafted: list[list[int]]) -> float:
    """Tokens that differ from plain decoding's, for each 1,000 drawn after the same text.

    Behind its first difference a request has another text, so it counts up to there.
    """
    num_flips = num_alike = 0
    for one, other in zip(plain, drafted, strict=True):
        alike = list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
        num_alike += len(alike)
        num_flips += one != other
    return 1000.0 * num_flips / (num_alike + num_flips)


def _speed(
    config: BenchSpeculateConfig,
    generate: Callable[[list[str | list[int]]], Drawn],
    prompts: list[str | list[int]],
) -> Speed:
    """The first call is a warm-up."""
    generate(prompts[:1])
    speeds = []
    for _ in range(config.runs):
        seconds, drawn = config.timed(partial(generate, prompts))
        speeds.append(drawn.num_tokens / seconds)
    error = statistics.stdev(speeds) if len(speeds) > 1 else math.nan
    return Speed(tokens_per_s=statistics.mean(speeds), error=error, drawn=drawn)


def _generate(
    config: BenchSpeculateConfig, decoder: Decoder, prompts: list[str | list[int]]
) -> Drawn:
    seeds = list(range(len(prompts)))
    results: list[Generation] = decoder.generate(
        prompts, max_new_tokens=config.new_tokens, seed=seeds
    )
    forwards = sum(result.ledger.risky_forwards - 1 for result in results)
    texts = [result.token_ids for result in results]
    return Drawn(num_tokens=sum(map(len, texts)), risky_forwards=forwards, texts=texts)


def _risky_alone(
    config: BenchSpeculateConfig, pair: ModelPair, prompts: list[str | list[int]]
) -> Drawn:
    """The risky model by itself, seen by the host token by token as the decoders here are."""
    encoded = [pair.encode(prompt) for prompt in prompts]
    for start in range(0, len(encoded), config.batch_size):
        batch = encoded[start : start + config.batch_size]
        longest = max(map(len, batch)) + config.new_tokens
        alone = ModelAlone(pair, "risky", num_rows=len(batch), max_length=longest, on_device=False)
        alone.generate(batch, config.new_tokens)
    num_tokens = len(prompts) * config.new_tokens
    return Drawn(num_tokens=num_tokens, risky_forwards=num_tokens - len(prompts), texts=[])


def _pair(config: BenchSpeculateConfig) -> ModelPair:
    if config.safe is not None and config.risky is not None:
        options = ModelOptions(
            safe=config.safe, risky=config.risky, dtype=config.dtype, device=config.device
        )
        return options.pair()
    dtype = torch.float32 if config.dtype == "auto" else getattr(torch, config.dtype)
    return random_pair(
        "tiny", config.random_risky, vocab_size=RANDOM_VOCAB, dtype=dtype, device=config.device
    )


def _prompts(config: BenchSpeculateConfig, count: int | None = None) -> list[str | list[int]]:
    """The quickstart's prompts for a pair in folders, which may have been trained on them."""
    count = count or config.num_prompts
    if config.safe is None:
        return list(random_prompts(count, RANDOM_PROMPT_TOKENS, RANDOM_VOCAB))
    texts = [prompt.prompt for prompt in quickstart_prompts(load_preset("default"))]
    return [texts[place % len(texts)] for place in range(count)]


def _headline(
    config: BenchSpeculateConfig, pair: ModelPair, costs: Costs, risky_alone: Speed
) -> str:
    names = (
        f"tiny + {config.random_risky} of random weights"
        if config.safe is None
        else f"{config.safe} + {config.risky}"
    )
    columns = ", ".join(f"{n}: {1e3 * s:.2f} ms" for n, s in costs.risky_s.items())
    return (
        f"{names}, V = {pair.vocab_size}, {pair.dtype} on {config.device}, torch "
        f"{torch.__version__}, batch {config.batch_size}, {config.num_prompts} x "
        f"{config.new_tokens} tokens, {config.runs} runs, {config.clock} seconds\n"
        f"safe forward {1e3 * costs.safe_s:.2f} ms, risky forward by columns {columns}; "
        f"c = {costs.safe_s / costs.risky_s[1]:.2f}\n"
        f"risky model alone: {risky_alone.tokens_per_s:.1f} tokens/s "
        f"(error {risky_alone.error:.1f}); not measured on a GPU"
    )


def _line(cells: tuple[str, ...]) -> str:
    return "".join(f"{cell:>10}" for cell in cells)
