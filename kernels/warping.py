"""Repetition penalty, temperature and one end, of both models' logits, before the projection."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# B requests, G rows of each, V vocabulary, S stop tokens.


def penalised(scores: Any, penalty: Any, where: Callable[..., Any] = torch.where) -> Any:
    """Scores of tokens that were seen: positive ones divided by the penalty, others multiplied.

    where: of torch, or of numpy for its arrays.
    Source: Keskar et al. 2019, "CTRL", section 4.1, as transformers applies it.
    """
    return where(scores > 0, scores / penalty, scores * penalty)


def merge_ends(scores: Tensor, token_ids: Tensor) -> None:
    """Give the first of these tokens, int64, the weight of all of them; the others are banned."""
    merged = scores.index_select(-1, token_ids).logsumexp(-1, keepdim=True)
    scores.index_fill_(-1, token_ids, float("-inf"))
    scores.index_copy_(-1, token_ids[:1], merged)


@dataclass(frozen=True, slots=True)
class Stops:
    """Tokens that end a text, all of whose probability is the first one's."""

    token_ids: Tensor
    """(S,) int64, ascending, S > 1."""
    is_stop: Tensor
    """(V,) bool."""

    @classmethod
    def of(cls, token_ids: Sequence[int], vocab_size: int, device: torch.device) -> "Stops | None":
        """None where there are not two, and so nothing is merged."""
        if len(token_ids) < 2:
            return None
        ids = torch.tensor(sorted(token_ids), dtype=torch.int64, device=device)
        is_stop = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        return cls(ids, is_stop.index_fill_(0, ids, True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Warping:
    """The warping that `walk` does to raw logits; Triton does it while it reads, without copies.

    Values are read on the device, so they are not checked.
    """

    temperature: Tensor
    """(B,) float32, > 0, contiguous."""
    penalty: Tensor | None = None
    """(B,) float32, > 0, contiguous; None for no penalty, and then there is no `seen`."""
    seen: Tensor | None = None
    """(B, G, V) bool, a token beside the next: those whose positive logits are divided by the
    penalty and whose others are multiplied by it."""
    stops: Stops | None = None

    def warped(self, logits: Tensor) -> Tensor:
        """(B, G, V) logits of one model after all of it, float32, or float64 if they are.

        -inf stays -inf and NaN stays NaN.
        """
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.seen is not None and self.penalty is not None:
            lower = penalised(scores, self.penalty[:, None, None])
            scores = torch.where(self.seen, lower, scores)
        scores = scores / self.temperature[:, None, None]
        if self.stops is not None:
            merge_ends(scores, self.stops.token_ids)
        return scores
