"""What a round of speculative decoding costs and gives, by the cost model."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Seconds of forwards over a batch."""

    safe_s: float
    risky_s: dict[int, float]
    """By columns."""


def predicted_ratio(costs: Costs, length: int, kept: float) -> float:
    """Speed of drafts of this length as a multiple of plain paired decoding.

    Source: Leviathan et al. 2023, theorem 3.8, with the last draft's safe forward only due where
    all drafts are kept, and the risky forward's own cost of more columns.
    """
    num_expected = sum(kept**place for place in range(length + 1))
    round_s = costs.risky_s[length + 1] + costs.safe_s * (length + kept**length)
    return num_expected * (costs.safe_s + costs.risky_s[1]) / round_s
