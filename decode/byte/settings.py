"""Settings of decoding byte by byte, and counts of the work."""

from dataclasses import asdict, dataclass

from ...fields import check_fields


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteSettings:
    """The cost of a byte; ledgers record it. The distributions of bytes do not depend on it."""

    prefetch: int = 4
    """Likely continuations that each forward computes ahead of the text, 0 for none. With 4 of them
    one text takes a third less time on a CPU, and eight texts take 2 % more."""

    def __post_init__(self) -> None:
        check_fields(self)
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
    """Positions among them that were computed ahead of the text."""
    num_hits: int = 0
    """Guesses whose distribution was needed later."""
    weight: float = 0.0
    """Sum, over the next-token distributions that went into those of bytes, of their node's share
    of the text's mass."""
    masked_mass: float = 0.0
    """The same of this share times the probability that masking took from other tokens; 0 where a
    truncation of tokens is on, which only sees the others."""

    def record(self) -> dict[str, float]:
        """The figures of a ledger; `masked_mass` as the mean of the distributions by share."""
        figures: dict[str, float] = asdict(self)
        weight = figures.pop("weight")
        return figures | {"masked_mass": self.masked_mass / weight if weight else 0.0}
