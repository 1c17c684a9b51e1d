"""What the engine asks of one model: read prompts, then feed new columns."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

# B rows of a batch, R rows of one call, T new columns.

CHUNK_LOGITS = 1 << 24
"""Most logits held at once while given tokens are walked: 64 MiB in float32."""


UNSCORED = torch.empty(0, dtype=torch.float64)
"""Log-probabilities of a prompt's symbols where nobody asks for them."""


@dataclass(frozen=True, slots=True)
class PromptLogits:
    """What one model says about the prompts that it has read."""

    logits: Tensor
    """(R, vocab_size) after the last token of each prompt, in the model's dtype."""
    token_log_probs: list[Tensor]
    """Per prompt (length - 1,) float64 on the CPU: log-probabilities of tokens 1.., in nats; NaN
    where the logits are no distribution; (0,) of a stream that scores no prompts."""
    num_forwards: int
    """Forwards that each prompt took part in."""


class Stream(Protocol):
    """One model's memory of a batch of B rows."""

    vocab_size: int

    def read(self, prompts: list[list[int]], rows: list[int]) -> PromptLogits:
        """Read whole prompts, one into each of the given empty rows."""
        ...

    def feed(self, token_ids: Tensor, mask: Tensor) -> Tensor:
        """Logits (B, T, vocab_size) after each of T new columns, in the model's dtype.

        token_ids, mask: (B, T) int64; a row's ones come before its zeros, which are padding.
        """
        ...

    def feed_rows(self, rows: list[int], tokens: list[list[int]]) -> Tensor:
        """Logits (R, vocab_size) after the last of each row's new tokens, none of them empty."""
        ...

    def free(self, row: int) -> None:
        """Forget a row whose request has ended."""
        ...


def feed_in_chunks(stream: Stream, token_ids: Tensor, mask: Tensor) -> Iterator[Tensor]:
    """Logits (B, vocab_size) after each column of (B, T) tokens; (B, T, V) never exist at once."""
    for columns in chunks(stream.vocab_size, *token_ids.shape):
        yield from stream.feed(token_ids[:, columns], mask[:, columns]).unbind(1)


def chunks(vocab_size: int, batch_size: int, num_columns: int) -> Iterator[slice]:
    """Slices of the columns, each of at most CHUNK_LOGITS logits."""
    width = max(1, CHUNK_LOGITS // (batch_size * vocab_size))
    for start in range(0, num_columns, width):
        yield slice(start, min(start + width, num_columns))
