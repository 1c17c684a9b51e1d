"""Log-probabilities of tokens, drawn or read, and of the likeliest ones in their places."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class TokenLogProbs(NamedTuple):
    """One place of a text; nats."""

    token_id: int
    log_prob: float
    top: Sequence[tuple[int, float]]
    """The likeliest tokens of the place with theirs, the likeliest first."""


def top_log_probs(log_probs: Tensor, token_ids: Sequence[int], num_top: int) -> list[TokenLogProbs]:
    """Those of N places. log_probs: (N, V). token_ids: of each place, N. num_top: likeliest tokens
    of a place."""
    column = torch.tensor(token_ids, device=log_probs.device)[:, None]
    taken = log_probs.gather(1, column)[:, 0].tolist()
    top = log_probs.topk(num_top)
    rows = zip(token_ids, taken, top.indices.tolist(), top.values.tolist(), strict=True)
    return [
        TokenLogProbs(token_id, log_prob, list(zip(likeliest, values, strict=True)))
        for token_id, log_prob, likeliest, values in rows
    ]
