"""Speculative against plain decoding."""

import math
from collections.abc import Iterator

import torch

from anchored import Anchored, Decoder, ModelPair, RiskyOnly, text_tables
from anchored.decode.rules.rule import Rule
from anchored.decode.settings import Speculate
from anchored.tools.commands.options import ModelOptions, check_presence
from anchored.tools.quickstart.preset import load_preset

from .options import BenchSpeculateConfig
from .random_inputs import random_pair, random_prompts
from .speculation import (
    PROMPT_TOKENS,
    Costs,
    Prompts,
    Speed,
    SpeedMeasurement,
    flips_per_1000,
    measured_acceptance,
    predicted_ratio,
)

RANDOM_VOCAB = 2048
WIDTH = 10
TITLES = (
    "k",
    "draft",
    "risky fwd",
    "fwd/tok",
    "kept",
    "1 - TV",
    "+-",
    "bound",
    "ms/token",
    "error",
    "x plain",
    "x risky",
    "predicted",
    "flips",
)


@torch.inference_mode()
def run(config: BenchSpeculateConfig) -> int:
    """Print one table and return 0."""
    check_presence(config.device)
    pair = _pair(config)
    measure = _measurement(config, pair)
    costs = measure.costs([int(draft) for draft in config.drafts if draft != "auto"])
    risky_alone = measure.of_risky_alone()
    print(_headline(config, pair, costs, risky_alone))
    columns = max(costs.risky_s)
    print(
        f"risky log-probabilities by {columns} columns at once and by one: "
        f"up to {measure.rounding_nats(columns):.1e} nats apart"
    )
    print(text_tables.line(TITLES, WIDTH))
    for k in config.ks:
        for cells in _rows_of_k(config, measure, k, costs, risky_alone):
            print(text_tables.line(cells, WIDTH), flush=True)
    if config.ordinary:
        for cells in _rows(config, measure, RiskyOnly(), costs, risky_alone, math.nan):
            ordinary = ("p_r", *cells[:3], *["-"] * 4, *cells[3:])
            print(text_tables.line(ordinary, WIDTH), flush=True)
    return 0


def _measurement(config: BenchSpeculateConfig, pair: ModelPair) -> SpeedMeasurement:
    return SpeedMeasurement(
        pair=pair,
        prompts=_prompts(config, config.num_prompts),
        new_tokens=config.new_tokens,
        batch_size=config.batch_size,
        runs=config.runs,
        clock=config.clock,
        device=config.device,
    )


def _rows_of_k(
    config: BenchSpeculateConfig,
    measure: SpeedMeasurement,
    k: float,
    costs: Costs,
    risky_alone: Speed,
) -> Iterator[tuple[str, ...]]:
    """Cells of one budget, beside its acceptance and Pinsker's bound on that."""
    prompts = _prompts(config, config.acceptance_prompts)
    rule = Anchored(k=k)
    acceptance = measured_acceptance(measure.pair, rule, prompts, config.new_tokens)
    shown = (
        f"{acceptance.observed:.3f}",
        f"{acceptance.expected:.3f}",
        f"{acceptance.error:.3f}",
        f"{max(0.0, 1.0 - math.sqrt(k / 2)):.3f}",
    )
    for cells in _rows(config, measure, rule, costs, risky_alone, acceptance.expected):
        yield (f"{k:g}", *cells[:3], *shown, *cells[3:])


def _rows(
    config: BenchSpeculateConfig,
    measure: SpeedMeasurement,
    rule: Rule,
    costs: Costs,
    risky_alone: Speed,
    kept: float,
) -> Iterator[tuple[str, ...]]:
    """Cells of decoding without drafts, the cold start resting the risky model, and with them."""
    plain: Speed | None = None
    for draft in ("off", *config.drafts):
        speculate: Speculate = draft if draft in ("off", "auto") else int(draft)  # type: ignore[assignment]
        decoder = Decoder(measure.pair, rule, batch_size=config.batch_size, speculate=speculate)
        speed = measure.of_decoder(decoder)
        if plain is None:
            plain = speed
            yield _every_token(speed)
        is_fixed = draft not in ("off", "auto") and not math.isnan(kept)
        yield (
            draft,
            str(speed.drawn.risky_forwards),
            f"{speed.drawn.forwards_per_token:.2f}",
            f"{1e3 * speed.token_s:.2f}",
            f"{1e3 * speed.error_s:.2f}",
            f"{plain.token_s / speed.token_s:.2f}",
            f"{risky_alone.token_s / speed.token_s:.2f}",
            f"{predicted_ratio(costs, int(draft), kept):.2f}" if is_fixed else "-",
            f"{flips_per_1000(plain.drawn.texts, speed.drawn.texts):.1f}",
        )


def _every_token(plain: Speed) -> tuple[str, ...]:
    """Counts of a decoder that never lets the risky model rest: the first token is the prompt's."""
    forwards = plain.drawn.num_tokens - len(plain.drawn.texts)
    return ("no rest", str(forwards), f"{forwards / plain.drawn.num_tokens:.2f}", *["-"] * 6)


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


def _prompts(config: BenchSpeculateConfig, count: int) -> Prompts:
    """The quickstart's prompts for a pair in folders, which may have been trained on them."""
    if config.safe is None:
        return list(random_prompts(count, PROMPT_TOKENS, RANDOM_VOCAB))
    texts = [prompt.prompt for prompt in load_preset("default").prompts()]
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
        f"{names}, V = {pair.vocab_size}, {pair.dtype} on {_machine(config.device)}, torch "
        f"{torch.__version__}, batch {config.batch_size}, {config.num_prompts} x "
        f"{config.new_tokens} tokens, {config.runs} runs, {config.clock} seconds\n"
        f"safe forward {1e3 * costs.safe_s:.2f} ms, risky forward by columns {columns}; "
        f"c = {costs.safe_s / costs.risky_s[1]:.2f}\n"
        f"risky model alone: {1e3 * risky_alone.token_s:.2f} ms/token "
        f"(error {1e3 * risky_alone.error_s:.2f})"
    )


def _machine(device: str) -> str:
    """What the speeds are of."""
    if torch.device(device).type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"{device} (not measured on a GPU)"
