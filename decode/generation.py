"""What a caller gets back for one prompt."""

from dataclasses import dataclass

from .ledger import Ledger


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """A continuation with the record of what it spent."""

    prompt: str | list[int]
    text: str
    """The continuation; the end symbol and anything from a stop string on are left out."""
    pieces: list[tuple[str, bool]]
    """The text symbol by symbol, with whether the safe model's own draw was kept."""
    ledger: Ledger
    error: str = ""
    """Why this request failed, "" for success; what was drawn before is kept."""

    @property
    def token_ids(self) -> list[int]:
        """Tokens of the continuation (bytes at byte level), the end included where it was drawn."""
        return self.ledger.token_ids

    @property
    def finish_reason(self) -> str:
        """ "length", "stop_token", "stop_string" or "error"."""
        return self.ledger.finish_reason

    def __str__(self) -> str:
        header = self.ledger.header
        certified = "certified" if self.ledger.certified else "NOT certified"
        total = f" (in total {self.ledger.total_bound:.4g})" if self._is_one_of_several else ""
        return (
            f"K={header.K:.4g} (k={header.k:.4g} x {header.horizon}) debt={header.debt:.4g} "
            f"spent={self.ledger.spent:.4g} bound={header.bound:.4g}{total} nats, "
            f"{len(self.token_ids)} {header.level}s, {self.finish_reason}, {certified}"
        )

    @property
    def _is_one_of_several(self) -> bool:
        """Whether other samples or earlier text share its prompt, so that bounds add up."""
        header = self.ledger.header
        return header.num_return_sequences > 1 or header.prior_bound > 0.0
