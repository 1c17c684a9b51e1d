"""The outcome of a check on this machine's GPU; the sizes and logits that checks are made with."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from anchored.tools.bench.options import Shape as ModelShape

Shape = tuple[int, int]
Case = tuple[str, Tensor, Tensor]
DTYPES: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """Whether a claim held, and the figures behind it."""

    passed: bool
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """How large the inputs of the checks are."""

    shapes: tuple[Shape, ...]
    """Rows and tokens of logits."""
    extreme_shapes: tuple[Shape, ...]
    batch_shape: Shape
    """Of rows that are alone and together."""
    warped_shape: Shape
    replayed_shape: Shape
    num_replays: int
    num_draws: int
    """From one law of 257 tokens."""
    walk_shape: tuple[int, int, int]
    """Requests, rows of each, tokens."""
    attention_shape: tuple[int, int, int, int]
    """Query heads, key heads, columns, size of a head."""
    pair_shapes: tuple[ModelShape, ModelShape]
    vocab_size: int
    """Of the pairs that decode."""
    num_requests: int
    num_new_tokens: int
    prompt_lengths: tuple[int, ...]
    """In turn, so that rows differ and join and leave."""
    num_drafts: int
    num_mixed: int
    """Requests of every kind for a pair in vLLM."""
    num_short: int
    """Requests of 1 to 3 tokens there."""
    byte_text: bytes
    num_counted: int
    """Tokens or bytes over which waits are counted."""
    is_timed: bool
    """Whether times mean anything."""


FULL = Sizes(
    shapes=((64, 1), (64, 17), (256, 257), (32, 1025), (16, 32_000), (4, 128_256)),
    extreme_shapes=(
        *((1, 1), (1024, 257), (1, 262_144), (64, 128_256), (1024, 4097), (3, 513)),
        (70_000, 17),
    ),
    batch_shape=(48, 20_000),
    warped_shape=(4, 5000),
    replayed_shape=(4, 128_256),
    num_replays=100_000,
    num_draws=50_000,
    walk_shape=(16, 5, 32_000),
    attention_shape=(32, 8, 4096, 128),
    pair_shapes=("tiny", "small"),
    vocab_size=2048,
    num_requests=9,
    num_new_tokens=12,
    prompt_lengths=(3, 17, 40),
    num_drafts=3,
    num_mixed=200,
    num_short=100_000,
    byte_text=b"It's the keeper's  lamp, 1234\n\nof caf\xc3\xa9s",
    num_counted=16,
    is_timed=True,
)
"""Of a GPU: seconds a check."""

SMALL = Sizes(
    shapes=((2, 17), (1, 1025)),
    extreme_shapes=((1, 1), (3, 513)),
    batch_shape=(3, 70),
    warped_shape=(2, 70),
    replayed_shape=(2, 70),
    num_replays=4,
    num_draws=24,
    walk_shape=(2, 2, 70),
    attention_shape=(4, 2, 150, 16),
    pair_shapes=("tiny", "tiny"),
    vocab_size=40,
    num_requests=3,
    num_new_tokens=3,
    prompt_lengths=(3, 5, 4),
    num_drafts=1,
    num_mixed=12,
    num_short=120,
    byte_text=b"It's caf\xc3\xa9",
    num_counted=3,
    is_timed=False,
)
"""Of Triton's interpreter, which takes a millisecond for what a GPU does in a nanosecond."""


RunCheck = Callable[[torch.device, Sizes], Check]


# B rows, V vocabulary.


def logit_cases(shape: Shape, device: torch.device, seed: int) -> Iterator[Case]:
    """Name, risky and safe logits (B, V) of every kind, the dtypes in turn."""
    for index, (name, make) in enumerate(_KINDS.items()):
        generator = torch.Generator().manual_seed(seed + index)  # the same logits anywhere
        risky, safe = (logits.to(device) for logits in make(shape, generator))
        dtype = DTYPES[index % len(DTYPES)]
        limit = 100.0 if name != "huge" else 1e4
        yield name, _within(risky, limit).to(dtype), _within(safe, limit).to(dtype)


def _within(logits: Tensor, limit: float) -> Tensor:
    return torch.where(logits == -torch.inf, logits, logits.clamp(-limit, limit))


def _noise(shape: Shape, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator)


def _generic(shape: Shape, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    base = 2.5 * _noise(shape, generator)
    return base + _noise(shape, generator), 0.8 * base + 0.5 * _noise(shape, generator)


def _memorised(shape: Shape, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    risky, safe = _generic(shape, generator)
    risky[:, shape[1] // 2] += 14.0
    return risky, safe


def _disjoint_peaks(shape: Shape, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    risky, safe = _generic(shape, generator)
    risky[:, 0], safe[:, -1] = 60.0, 40.0
    return risky, safe


def _identical(shape: Shape, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    logits = _noise(shape, generator)
    return logits, logits.clone()


def _tied(shape: Shape, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    risky, safe = _generic(shape, generator)
    return risky.round(), torch.zeros_like(safe)


def _masked(shape: Shape, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    pair = _generic(shape, generator)
    for logits in pair:
        banned = torch.rand(shape, generator=generator) < 0.4
        banned[:, 0] = False
        logits.masked_fill_(banned, -torch.inf)
    return pair


def _huge(shape: Shape, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return 3e3 * _noise(shape, generator), 3e3 * _noise(shape, generator)


_KINDS: dict[str, Callable[[Shape, torch.Generator], tuple[Tensor, Tensor]]] = {
    "generic": _generic,
    "memorised": _memorised,
    "disjoint_peaks": _disjoint_peaks,
    "identical": _identical,
    "tied": _tied,
    "masked": _masked,
    "huge": _huge,
}
