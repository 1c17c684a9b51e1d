"""How much of a token tree a model evaluates, and what that cost."""

from dataclasses import dataclass
from typing import Literal

Mode = Literal["masked", "raw"]
"""masked: only tokens that keep the sequence viable. raw: all that keep the text UTF-8."""

PromptScores = Literal["exact", "upper", "lower", "none"]
"""exact: log-probabilities of the prompt's bytes. upper, lower: an end of an interval that holds
them, from the prompt's own tokens alone. none: none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteEvaluation:
    """What one model computes at byte level; the safe model's must stay exact (`tau` 0)."""

    tau: float = 0.0
    """Most total variation that a step may lose to nodes that are left out for their small mass."""
    prefetch: int = 0
    """Likely continuations whose nodes join each forward; changes nothing but the cost."""
    prompt_scores: PromptScores = "exact"
    """What `read` says about the bytes of prompts. Bounded debts take the upper end of the risky
    model and the lower end of the safe one."""
    mode: Mode = "masked"
    """Which tokens count: those that keep the text canonical, or all that keep it UTF-8."""

    def __post_init__(self) -> None:
        if not 0 <= self.tau < 1:
            raise ValueError(f"tau must be in [0, 1), got {self.tau}")
        if self.prefetch < 0:
            raise ValueError(f"prefetch must be >= 0, got {self.prefetch}")


@dataclass(slots=True)
class ByteCounts:
    """The work for one row since its prompt came, the prompt included."""

    num_forwards: int = 0
    """Forwards that the row took part in."""
    num_nodes: int = 0
    """Token positions computed in them."""
    num_guesses: int = 0
    """Those of them that were computed ahead of the text."""
    num_hits: int = 0
    """Guesses whose distribution was needed later."""
    total_variation: float = 0.0
    """Upper bound on the total variation lost to `tau` in the last step."""
    max_total_variation: float = 0.0
    """Its largest value so far."""
    num_laws: int = 0
    """Next-token distributions that went into those of bytes."""
    masked_mass: float = 0.0
    """Sum, over these, of the probability that masking took from other tokens."""

    def record(self) -> dict[str, float]:
        """What a ledger keeps; `masked_mass` as the mean over the distributions."""
        return {
            "num_forwards": self.num_forwards,
            "num_nodes": self.num_nodes,
            "num_guesses": self.num_guesses,
            "num_hits": self.num_hits,
            "max_total_variation": self.max_total_variation,
            "masked_mass": self.masked_mass / max(1, self.num_laws),
        }
