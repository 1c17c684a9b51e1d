"""All steps of a ledger together: each may be off by its tolerance, their sums by less."""

import math
from collections.abc import Sequence

import torch

from .step import Step

DEVIATIONS_OF_A_COUNT = 4.0
"""Rounding changes one token of a text or many, as its distributions are sure or flat. Honest texts
have as many as their distributions lead one to expect, within so many roots of that number; more
were chosen."""

DEVIATIONS_OF_A_GAIN = 3.0
"""Rounding takes either token at an edge as often as the other, so what such tokens gain in
log p_r / p_s has mean 0, and two draws from a distribution differ by the root of 2 of its
deviation. Nobody who draws exceeds this many deviations of the sum; who chooses only gains does."""

DEVIATIONS_OF_A_TEMPERATURE = 3.0
"""Rounding makes a recorded log-probability steeper as often as flatter, and another temperature
makes all of them one or the other. Of 64 honest texts in bfloat16 none had more than 0.8 deviations
of the sum; of 0.8 for a temperature of 0.7 all had 5 to 8, though each step was within rounding."""


def most_at_a_boundary(steps: Sequence[Step]) -> float:
    """The most tokens that rounding should have changed, with one more by bad luck."""
    expected = 1.0 + math.fsum(step.chance for step in steps)
    return expected + DEVIATIONS_OF_A_COUNT * math.sqrt(expected)


def most_gain(steps: Sequence[Step]) -> float:
    """Nats of log p_r / p_s that tokens which rounding changed gain at most by chance."""
    # Two draws from a distribution differ by twice its variance, and again one by bad luck.
    variances = [2.0 * step.spread**2 for step in steps]
    changed = [each for step, each in zip(steps, variances, strict=True) if step.rounding]
    variance = math.fsum(changed) + math.fsum(variances) / len(steps)
    return DEVIATIONS_OF_A_GAIN * math.sqrt(variance)


def steepness(steps: Sequence[Step]) -> float:
    """Deviations of rounding by which all recorded log p_s are those of a lower temperature."""
    length = math.hypot(*(slope for _, slope in (step.steepness for step in steps)))
    return math.fsum(math.prod(step.steepness) for step in steps) / (length or 1.0)


def sums_apart(spends: Sequence[float], steps: Sequence[Step]) -> str:
    """The first run of steps that spent what rounding does not explain, "" for none.

    No run of steps may have spent less than the replay says: passages have bounds as texts do, and
    what one step states too much makes up for no other one. More is harmless, up to the slack.
    """
    replayed = torch.tensor([step.nats for step in steps], dtype=torch.float64)
    squares = torch.tensor([step.nats_by**2 for step in steps], dtype=torch.float64)
    spent = torch.tensor(spends, dtype=torch.float64)
    for last in range(len(steps)):
        # Of the runs that end here, the shortest first.
        sums = (replayed - spent)[: last + 1].flip(0).cumsum(0)
        is_above = ~(sums <= squares[: last + 1].flip(0).cumsum(0).sqrt())
        if is_above.any():
            run = slice(last - int(is_above.int().argmax()), last + 1)
            nats, recorded = replayed[run].sum().item(), spent[run].sum().item()
            return f"divergence {nats} nats in steps {run.start} to {last}, spent {recorded}"
    slack = math.fsum(step.slack for step in steps)
    nats, recorded = replayed.sum().item(), spent.sum().item()
    if not nats - recorded >= -(squares.sum().sqrt().item() + slack):
        return f"divergence {nats} nats, spent {recorded}"
    return ""
