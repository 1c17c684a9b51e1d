"""Times of a pair of real shapes in each engine, beside its risky model alone."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from anchored import Anchored, Decoder, ModelPair
from anchored.decode.settings import EngineName, Speculate
from anchored.tools.bench.baselines import ModelAlone
from anchored.tools.bench.decode import WARPERS, copy_bytes_per_s, step_bytes
from anchored.tools.bench.random_inputs import random_prompts
from anchored.tools.bench.timing import timed

from .decoding_checks import num_waits

PROMPT_TOKENS = 256
NEW_TOKENS = 128
NUM_RUNS = 3
RULE = Anchored(k=0.5, debt="none")
ENGINES: dict[str, tuple[EngineName, Speculate]] = {
    "eager": ("eager", "off"),
    "device": ("device", "off"),
    "device, 2 drafts": ("device", 2),
}
Generate = Callable[[list[list[int]], int], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class PairTiming:
    """One engine at one batch size, medians over runs; weights are random, so drafts are kept as
    chance has it."""

    batch_size: int
    engine: str
    first_token_ms: float
    """Prompts of PROMPT_TOKENS tokens and one step."""
    tokens_per_s: float
    """After the first token, all requests together."""
    over_risky: float
    """As a share of the risky model's alone, in a graph."""
    over_bandwidth: float
    """As a share of what reading the weights once a token at copy bandwidth would allow."""
    waits_per_token: float
    """Waits of the host for the device, prompts included, a token of each request."""


def pair_timings(pair: ModelPair, batch_size: int) -> Iterator[PairTiming]:
    """The risky model alone, then the pair in every engine."""
    device = str(pair.safe.device)
    bandwidth = copy_bytes_per_s(device)
    weights = {name: step_bytes(model) for name, model in pair.models.items()}
    risky_speed = 0.0
    for name, generate in _engines(pair, batch_size).items():
        prompts = random_prompts(batch_size, PROMPT_TOKENS, pair.vocab_size)
        first_s, speed = generation_speed(generate, prompts, device)
        waits = num_waits(partial(generate, prompts, NEW_TOKENS), 1) / NEW_TOKENS
        risky_speed = risky_speed or speed
        is_alone = name == "risky alone"
        num_bytes = weights["risky"] if is_alone else sum(weights.values())
        yield PairTiming(
            batch_size=batch_size,
            engine=name,
            first_token_ms=1e3 * first_s,
            tokens_per_s=speed,
            over_risky=speed / risky_speed,
            over_bandwidth=speed / batch_size * num_bytes / bandwidth,
            waits_per_token=waits,
        )


def _engines(pair: ModelPair, batch_size: int) -> dict[str, Generate]:
    alone = ModelAlone(
        pair,
        "risky",
        num_rows=batch_size,
        max_length=PROMPT_TOKENS + NEW_TOKENS,
        on_device=True,
    )
    decoders = {
        name: Decoder(pair, RULE, batch_size=batch_size, engine=engine, speculate=speculate)
        for name, (engine, speculate) in ENGINES.items()
    }
    generators = {name: partial(generated, decoder) for name, decoder in decoders.items()}
    return {"risky alone": alone.generate, **generators}


def generated(decoder: Decoder, prompts: list[list[int]], num_tokens: int) -> int:
    """Generate so many tokens for every prompt; returns how many altogether."""
    results = decoder.generate(prompts, max_new_tokens=num_tokens, **WARPERS)
    return sum(len(result.token_ids) for result in results)


def generation_speed(
    generate: Generate, prompts: list[list[int]], device: str
) -> tuple[float, float]:
    """(seconds to the first token, tokens a second after it), medians over runs."""
    generate(prompts, NEW_TOKENS)
    first_s, speeds = [], []
    for _ in range(NUM_RUNS):
        one_s, _ = timed(partial(generate, prompts, 1), device=device)
        whole_s, _ = timed(partial(generate, prompts, NEW_TOKENS), device=device)
        first_s.append(one_s)
        speeds.append(len(prompts) * (NEW_TOKENS - 1) / (whole_s - one_s))
    return statistics.median(first_s), statistics.median(speeds)
