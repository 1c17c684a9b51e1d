"""Pairs of logits of every kind that a projection is tested on, and how many rows of which size."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anchored.kernels import reference
from anchored.kernels.project import project_kl, project_max
from anchored.kernels.projection import Projection

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

KINDS = (
    "generic",
    "agreeing",
    "memorized",
    "confident",
    "disjoint_peaks",
    "identical",
    "shifted",
    "scaled",
    "two_atoms",
    "masked_risky",
    "masked_safe",
    "masked_both",
    "disjoint_support",
    "huge",
)
"""All of these but "huge" keep finite logits within +-100."""

FEW_SIZES = [(1, 2), (2, 4), (17, 4), (257, 4), (4200, 2), (40_000, 1)]
"""Vocabulary sizes, and rows of each. 14 kinds x 2 dtypes x 17 rows = 476 cases."""

SIZES = [(size, 42) for size in (1, 2, 3, 5, 17, 64, 257, 1000)] + [(4001, 16), (128_256, 9)]
"""The same, 14 x 2 x 361 = 10,108 cases."""

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
"""Kinds at the ends of what numbers hold: huge, masked by finite constants, mixed."""


def random_budgets(num_rows: int, generator: torch.Generator) -> Tensor:
    """(num_rows,) float64, from 1e-6 to 50 nats, log-uniform, a tenth of them 0."""
    exponent = torch.rand(num_rows, generator=generator, dtype=torch.float64)
    budget = 1e-6 * (50.0 / 1e-6) ** exponent
    is_zero = torch.rand(num_rows, generator=generator) < 0.1
    return torch.where(is_zero, 0.0, budget)


def random_logits(
    kind: str, num_rows: int, vocab_size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Risky and safe logits (num_rows, vocab_size), float64 of KINDS, float32 of EXTREME_KINDS, of
    which every row allows a token in each."""
    shape = (num_rows, vocab_size)
    if kind in EXTREME_KINDS:
        return _extreme(kind, shape, generator)
    noise = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)]
    scale = [torch.rand(num_rows, 1, generator=generator, dtype=torch.float64) for _ in range(3)]
    rank = noise[2].argsort(dim=1).double()
    # Zipf with the exponents and the noise of real next-token distributions.
    base = -(1.1 + scale[0]) * torch.log(rank + 2.0) + 0.5 * noise[0]
    safe = base + (0.1 + 0.7 * scale[1]) * noise[1]
    risky = (0.9 + 0.5 * scale[1]) * base + (0.3 + 1.7 * scale[2]) * noise[2].flip(1)
    shape_of = {
        "agreeing": lambda: ((1.0 + 0.1 * scale[1]) * safe + 0.05 * noise[2], safe),
        "memorized": lambda: (_peaked(risky, 12.0 * scale[2], generator), safe),
        "confident": lambda: (risky, _peaked(safe, 12.0 * scale[2], generator)),
        "disjoint_peaks": lambda: (
            _peaked(risky, 40.0 * scale[1], generator),
            _peaked(safe, 40.0 * scale[2], generator),
        ),
        "identical": lambda: (safe.clone(), safe),
        "shifted": lambda: (safe + 30.0 * scale[2], safe),
        "scaled": lambda: (
            (10.0 ** (5.0 * scale[1] - 3.0) * noise[0]).clamp(-100.0, 100.0),
            (10.0 ** (5.0 * scale[2] - 3.0) * noise[1]).clamp(-100.0, 100.0),
        ),
        "two_atoms": lambda: _two_atoms(noise, scale),
        "masked_risky": lambda: (masked(risky, generator), safe),
        "masked_safe": lambda: (risky, masked(safe, generator)),
        "masked_both": lambda: (masked(risky, generator), masked(safe, generator)),
        "disjoint_support": lambda: _disjoint(risky, safe),
        "huge": lambda: (
            (10.0 ** (4.5 * scale[1]) * noise[0]).clamp(-1e4, 1e4),
            (10.0 ** (4.5 * scale[2]) * noise[1]).clamp(-1e4, 1e4),
        ),
    }.get(kind, lambda: (risky, safe))
    return shape_of()


def _peaked(logits: Tensor, height: Tensor, generator: torch.Generator) -> Tensor:
    token = torch.randint(logits.shape[1], (len(logits), 1), generator=generator)
    top = logits.amax(1, keepdim=True)
    return logits.scatter(1, token, (top + height).clamp(max=100.0))


def masked(logits: Tensor, generator: torch.Generator, mask: Tensor | float = -math.inf) -> Tensor:
    """A random share of each row's tokens has the mask for a logit, but never the whole row."""
    share = torch.rand(len(logits), 1, generator=generator)
    is_masked = torch.rand(logits.shape, generator=generator) < share
    kept = torch.randint(logits.shape[1], (len(logits), 1), generator=generator)
    return torch.where(is_masked.scatter(1, kept, False), mask, logits)


def _disjoint(risky: Tensor, safe: Tensor) -> tuple[Tensor, Tensor]:
    cut = max(1, risky.shape[1] // 2)
    risky, safe = risky.clone(), safe.clone()
    if risky.shape[1] > 1:
        risky[:, :cut] = -math.inf
        safe[:, cut:] = -math.inf
    return risky, safe


def _two_atoms(noise: list[Tensor], scale: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Each model sure of another token that the other model all but excludes."""
    safe, risky = -50.0 + noise[0], -50.0 + noise[1]
    safe[:, 0], risky[:, -1] = 100.0 * scale[0][:, 0], 100.0 * scale[1][:, 0]
    if safe.shape[1] > 1:
        safe[:, -1], risky[:, 0] = -100.0 * scale[2][:, 0], -100.0 * scale[2][:, 0]
    return risky, safe


def _extreme(
    kind: str, shape: tuple[int, int], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    num_rows, vocab_size = shape
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


def star_log_probs(projection: Projection, risky: Tensor, safe: Tensor) -> Tensor:
    """(B, V) float64 log p* of KL, by the definition at the weight returned."""
    tilted = reference.tilted_log_probs(risky, safe, projection.weight)
    return torch.where(projection.is_safe_only[:, None], reference.log_softmax(safe), tilted)


def project_drawn(*rows: Tensor | None, **options: Any) -> Projection:
    """`project_max` that charges the token drawn."""
    return project_max(*rows, charge="drawn", **options)


def divergence_of(project: Callable, projection: Projection, risky: Tensor, safe: Tensor) -> Tensor:
    """(B,) float64 divergence from the safe model of the distribution that Triton returned, not of
    its rounding; all on one device."""
    if project is project_kl:
        return reference.kl_divergence(star_log_probs(projection, risky, safe), safe)
    is_shared = (risky > -math.inf) & (safe > -math.inf)
    tilt = torch.where(is_shared, risky.double() - safe.double(), 0.0) / math.log(2.0)
    tilt = tilt - (projection.risky_peak - projection.safe_peak)[:, None] / math.log(2.0)
    ratio = torch.minimum(tilt + projection.offset[:, None], projection.ceiling[:, None])
    largest = torch.where(is_shared, ratio, -math.inf).amax(-1) * math.log(2.0)
    return torch.where(projection.is_safe_only, 0.0, largest)
