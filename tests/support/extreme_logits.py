"""Pairs of logits at the ends of what numbers hold: huge, masked by finite constants, mixed."""

import math

import torch
from logit_kinds import masked
from torch import Tensor

MAGNITUDES = (1.0, 30.0, 1e3, 1e4, 1e6, 1e7, 1e9, 1e16, 1e30)
MASKS = (-1e4, -1e6, -1e7, -1e9, -1e16, -1e30, torch.finfo(torch.float32).min, -math.inf)
EXTREME_KINDS = (
    "masked favorite",
    "masked often",
    "of one magnitude",
    "of two magnitudes",
    "of mixed magnitudes",
    "with a spike",
)


def extreme_pair(
    kind: str, num_rows: int, vocab_size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Risky and safe logits (num_rows, vocab_size) float32; every row allows a token in each."""
    shape = (num_rows, vocab_size)
    risky, safe = (3.0 * torch.randn(shape, generator=generator) for _ in range(2))
    if kind == "masked favorite":
        risky.scatter_(1, safe.argmax(1, keepdim=True), _picks(MASKS, num_rows, generator))
        risky = risky if vocab_size > 1 else risky.clamp(min=MASKS[-2])
    elif kind == "masked often":
        risky = masked(risky, generator, _picks(MASKS, num_rows, generator))
        often = masked(safe, generator, _picks(MASKS, num_rows, generator))
        safe = torch.where(torch.rand(num_rows, 1, generator=generator) < 0.5, often, safe)
    elif kind == "of one magnitude":
        scale = _picks(MAGNITUDES, num_rows, generator)
        risky, safe = scale * risky, scale * safe
    elif kind == "of two magnitudes":
        risky = _picks(MAGNITUDES, num_rows, generator) * risky
        safe = _picks(MAGNITUDES, num_rows, generator) * safe
    elif kind == "of mixed magnitudes":
        risky, safe = (
            _picks(MAGNITUDES, risky.numel(), generator).view(shape) * x for x in (risky, safe)
        )
    else:
        place = torch.randint(vocab_size, (num_rows, 1), generator=generator)
        risky.scatter_(1, place, _picks(MAGNITUDES, num_rows, generator))
        place = torch.randint(vocab_size, (num_rows, 1), generator=generator)
        safe.scatter_(1, place, -_picks(MAGNITUDES, num_rows, generator))
    return risky, safe


def extreme_budgets(num_rows: int, generator: torch.Generator) -> Tensor:
    """(num_rows,) float64 nats: 0, or log-uniform from 1e-12 to 1e4."""
    exponent = torch.rand(num_rows, generator=generator, dtype=torch.float64)
    is_zero = torch.rand(num_rows, generator=generator) < 0.05
    return torch.where(is_zero, 0.0, 10.0 ** (16.0 * exponent - 12.0))


def _picks(values: tuple[float, ...], count: int, generator: torch.Generator) -> Tensor:
    return torch.tensor(values)[torch.randint(len(values), (count, 1), generator=generator)]
