"""The byte level on a GPU: a byte, the first one behind a prompt's debt, and forwards a token."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from anchored import Anchored, ByteSettings, Decoder, PromptCache
from anchored.tools.bench.byte.pair import BytePair, trained_pair
from anchored.tools.bench.options import Shape
from anchored.tools.bench.random_inputs import random_llama
from anchored.tools.bench.timing import Stopwatch, half_quartile_range, timed

from .decoding_checks import NUM_BEFORE, model_pair, opened_batch

BYTES_PER_ROUND = 64
NUM_ROUNDS = 5
VOCAB_SIZES = (1024, 2048)
CONTEXT_TOKENS = 4096
PROMPT_BYTES = 200
NEW_BYTES = 200
TRAIN_STEPS = 100
"""Of the small pair whose forwards are counted: random models write text of tokens of one byte."""
PREFETCHES = (0, 8)
K = 1e4
"""Nats a byte, above any debt: what a debt leaves nothing of would be drawn from the safe model."""
DEBTS = {
    "none": (Anchored(k=K, debt="none"), ByteSettings()),
    "bounded": (Anchored(k=K), ByteSettings(debt="bounded")),
    "exact": (Anchored(k=K), ByteSettings(debt="exact")),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteTiming:
    """Milliseconds of one step of a whole batch, the median over rounds."""

    batch_size: int
    ms_per_byte: float
    error_ms: float
    """Half the range between the quartiles of the rounds."""


def byte_timing(device: torch.device, batch_size: int) -> Iterator[ByteTiming]:
    """One row, of bfloat16 models."""
    total = NUM_BEFORE + NUM_ROUNDS * BYTES_PER_ROUND
    batch = opened_batch(device, batch_size=batch_size, dtype=torch.bfloat16, num_bytes=total + 1)
    for _ in range(NUM_BEFORE):
        batch.step()
    times = []
    for _ in range(NUM_ROUNDS):
        with Stopwatch(device=device) as watch:
            for _ in range(BYTES_PER_ROUND):
                batch.step()
        times.append(1e3 * watch.seconds / BYTES_PER_ROUND)
    yield ByteTiming(
        batch_size=batch_size,
        ms_per_byte=statistics.median(times),
        error_ms=half_quartile_range(times),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstByteTiming:
    """From a prompt of PROMPT_BYTES bytes to the first byte, medians over rounds."""

    debt: str
    first_byte_ms: float
    error_ms: float
    """Half the range between the quartiles of the rounds."""
    over_none: float
    """As a multiple of the same without a debt."""


def first_byte_timings(
    device: torch.device, shapes: tuple[Shape, Shape]
) -> Iterator[FirstByteTiming]:
    """Without a debt, with a bounded one and with an exact one; random bfloat16 weights."""
    texts = _byte_pair(train_steps=0)
    for shape, each in zip(shapes, texts.models.values(), strict=True):
        each.model = random_llama(
            shape,
            each.model.vocab_size,
            CONTEXT_TOKENS,
            dtype=torch.bfloat16,
            device=str(device),
            eos_token_id=each.model.config.eos_token_id,
        )
    pair, prompt = model_pair(texts.models, device), _prompt(texts)
    without_ms = 0.0
    for name, (rule, settings) in DEBTS.items():
        # Every round reads the prompt anew.
        cache = PromptCache(0)
        decoder = Decoder(pair, rule, level="byte", byte_settings=settings, prompt_cache=cache)
        work = partial(decoder.generate, [prompt], max_new_bytes=1)
        work()
        times = [1e3 * timed(work, device=device)[0] for _ in range(NUM_ROUNDS)]
        first_byte_ms = statistics.median(times)
        without_ms = without_ms or first_byte_ms
        yield FirstByteTiming(
            debt=name,
            first_byte_ms=first_byte_ms,
            error_ms=half_quartile_range(times),
            over_none=first_byte_ms / without_ms,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteWork:
    """Forwards of the risky model for each of its tokens in the text that came out."""

    prefetch: int
    num_bytes: int
    risky_tokens: int
    risky_forwards: int
    """The prompt's among them."""
    risky_forwards_per_token: float


def byte_work(device: torch.device) -> Iterator[ByteWork]:
    """Without guesses and with some, of a small pair that is trained first."""
    texts = _byte_pair(train_steps=TRAIN_STEPS)
    pair, prompt = model_pair(texts.models, device), _prompt(texts)
    for prefetch in PREFETCHES:
        settings = ByteSettings(prefetch=prefetch)
        decoder = Decoder(pair, Anchored(k=0.5, debt="none"), level="byte", byte_settings=settings)
        (result,) = decoder.generate([prompt], max_new_bytes=NEW_BYTES)
        num_tokens = len(texts.models["risky"].tokenizer.encode(result.text).ids)
        yield ByteWork(
            prefetch=prefetch,
            num_bytes=len(result.token_ids),
            risky_tokens=num_tokens,
            risky_forwards=result.ledger.footer.risky_forwards,
            risky_forwards_per_token=result.ledger.footer.risky_forwards / num_tokens,
        )


def _byte_pair(*, train_steps: int) -> BytePair:
    return trained_pair(
        vocab_sizes=VOCAB_SIZES, train_steps=train_steps, context_length=CONTEXT_TOKENS
    )


def _prompt(texts: BytePair) -> list[int]:
    return list(texts.held_out[:PROMPT_BYTES])
