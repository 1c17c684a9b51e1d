"""The warped logits of one model: penalty, temperature, bans, truncation, one end symbol."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    LogitsProcessor,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ..kernels.spend import BAN_GAP
from .settings import KEEPS_ALL, SamplingConfig

TRUNCATIONS: Final[dict[str, tuple[type[Any], str]]] = {
    "top_k": (TopKLogitsWarper, "top_k"),
    "top_p": (TopPLogitsWarper, "top_p"),
    "min_p": (MinPLogitsWarper, "min_p"),
}
"""Warpers that drop tokens, by their settings, in the order in which they act: each is made of its
setting's value alone, and has it in this attribute."""

Places = tuple[NDArray[np.int64], NDArray[np.int64]]
"""(n,) rows and (n,) columns of a mask's True entries, of which there are few."""


def penalized(scores: Any, penalty: Any, where: Callable[..., Any] = torch.where) -> Any:
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


class Warpers:
    """Applies bans and a SamplingConfig and merges all stop tokens into the first one.

    Both models go through the same object, so the bound holds against the warped safe model.
    """

    def __init__(
        self,
        config: SamplingConfig,
        stop_token_ids: Sequence[int],
        banned_token_ids: Sequence[int] = (),
    ) -> None:
        """banned_token_ids: get no probability, before anything is truncated."""
        self.config = config
        self.stop_token_ids = sorted(stop_token_ids)
        self._token_ids = torch.tensor(self.stop_token_ids, dtype=torch.int64)
        self.banned_token_ids = list(banned_token_ids)
        self._banned = torch.tensor(self.banned_token_ids, dtype=torch.int64)
        self._truncations = list(_truncations(config))

    def __call__(self, logits: Tensor, seen: Tensor) -> Tensor:
        """Warped logits (batch, vocab_size), float32 or the wider dtype of the input.

        logits: (batch, vocab_size), any float dtype. seen: (batch, vocab_size) bool, the tokens of
        each row's prompt and output, which the repetition penalty pushes down.
        """
        return self.after(seen)(logits)

    def after(self, seen: Tensor | Places) -> Callable[[Tensor], Tensor]:
        """The warpers for `seen`, which is looked through once for both models.

        seen: a mask as above, or on a CPU the places of its True entries, one or more times.
        """
        if self.config.repetition_penalty == 1.0:
            return partial(self._warped, None)
        if isinstance(seen, Tensor) and seen.device.type == "cpu":
            # numpy finds them 15 times as fast in a flat array. A device would have to be waited
            # for to say which they are.
            rows, columns = np.unravel_index(np.flatnonzero(seen.numpy()), seen.shape)
            seen = rows, columns
        return partial(self._warped, seen)

    def _warped(self, seen: Tensor | Places | None, logits: Tensor) -> Tensor:
        """seen: None where nothing is penalized; on a CPU the places."""
        raw = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
        divisor = self.config.temperature or 1.0  # greedy projects at temperature 1
        penalty = self.config.repetition_penalty
        has_ends, has_bans = len(self.stop_token_ids) > 1, len(self._banned) > 0
        if seen is None and divisor == 1.0 and not (has_ends or has_bans or self._truncations):
            return raw  # a copy of all would be its whole cost
        if seen is None:
            scores = raw / divisor
        elif isinstance(seen, Tensor):
            scores = torch.where(seen, penalized(raw, penalty), raw) / divisor
        else:  # numpy, as these are few
            values = raw.numpy()
            # As in torch: a row that overflows, by T = 1e-40 say, turns out to be no distribution.
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                scores = torch.from_numpy(values / divisor)
                scores.numpy()[seen] = penalized(values[seen], penalty, np.where) / divisor
        if has_bans:
            self._send(scores.device)
            scores.index_fill_(1, self._banned, float("-inf"))
        for truncate in self._truncations:
            scores = truncate(None, scores)
        if has_ends:
            self._send(scores.device)
            merge_ends(scores, self._token_ids)
        return scores

    def end_merged(self, token_id: int) -> int:
        """The token itself, or the end symbol for any stop token."""
        return self.stop_token_ids[0] if token_id in self.stop_token_ids else token_id

    def _send(self, device: torch.device) -> None:
        # Once: indices that lie elsewhere make every step wait for the device.
        if self._banned.device != device:
            self._token_ids, self._banned = self._token_ids.to(device), self._banned.to(device)


def alike_or_new(present: Sequence[Warpers], config: SamplingConfig) -> Warpers:
    """The warpers of a config that are among those of a stream's rows already, which rows warp
    together by, else new ones with the same ends and bans."""
    alike = (warp for warp in present if warp.config == config)
    first = present[0]
    return next(alike, None) or Warpers(config, first.stop_token_ids, first.banned_token_ids)


def _truncations(config: SamplingConfig) -> Iterator[LogitsProcessor]:
    for name, (warper, _) in TRUNCATIONS.items():
        if (value := getattr(config, name)) != KEEPS_ALL[name]:
            yield warper(value)


CARRYING_GAP = 64.0
"""Nats below the largest beyond which a logit bears no mass that matters: masks are far below."""


def largest_logit(logits: Tensor, matters: Tensor | None = None) -> Tensor:
    """(...) the size of the largest logit of rows (..., V), warped, of those that bear mass.

    Warped, as a temperature divides the rounding like the logit. matters: (..., V) bool, symbols
    that count though they are far below the largest.
    """
    counts = logits >= logits.amax(-1, keepdim=True) - CARRYING_GAP
    if matters is not None:
        counts |= matters & (logits >= logits.amax(-1, keepdim=True) - BAN_GAP)
    return logits.abs().masked_fill(~counts, 0.0).amax(-1)
