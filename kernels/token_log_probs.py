"""Log-probabilities of chosen tokens, from logits or from the hidden states before them."""

import torch
from torch import Tensor

from .devices import work_device

# N positions, D hidden size, V vocabulary.

ROWS_PER_TILE = 512
"""The weight is read once for every so many positions: twice the ~200 FLOP a byte that an H100 or
H200 needs to be busy."""

COLUMNS_PER_TILE = 4096
"""Tokens of one tile: with ROWS_PER_TILE, 8 MiB of float32 logits."""


def token_log_probs(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Log-probability of one token per row.

    logits: (..., V), any float dtype; -inf is a banned token.
    token_ids: logits.shape[:-1], int64 in [0, V).
    Returns: the shape of token_ids, float64, nats, on the `work_device` of the logits; computed in
    float32 (float64 for float64 logits), so within 8 eps * max(1, largest finite |logit|) of the
    exact value, eps of that dtype.
    NaN where the logits are no distribution: NaN or +inf among them, or all -inf.
    """
    wide = _wide(logits)
    chosen = wide.gather(-1, token_ids[..., None])[..., 0]
    return _log_probs(chosen, wide.logsumexp(-1))


def hidden_token_log_probs(
    hidden: Tensor, weight: Tensor, token_ids: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Log-probability of one token per position, without logits of all positions.

    hidden: (N, D) float, the hidden states that the output layer reads.
    weight: (V, D), the dtype of hidden. bias: (V,) or None. token_ids: (N,) int64 in [0, V).
    Returns: (N,) float64, nats, as `token_log_probs(hidden @ weight.T + bias, token_ids)`: the
    logits are formed in the dtype of the weight, as the output layer forms them, the rest is
    float32 (float64 for float64). Extra memory: O(N) and a few tiles of ROWS_PER_TILE x
    COLUMNS_PER_TILE.
    Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax".
    """
    tiles = zip(*(torch.split(t, ROWS_PER_TILE) for t in (hidden, token_ids)), strict=True)
    return torch.cat([_tile_log_probs(rows, weight, tokens, bias) for rows, tokens in tiles])


def _tile_log_probs(
    hidden: Tensor, weight: Tensor, token_ids: Tensor, bias: Tensor | None
) -> Tensor:
    chosen = total = None
    for start in range(0, len(weight), COLUMNS_PER_TILE):
        columns = slice(start, min(start + COLUMNS_PER_TILE, len(weight)))
        tile_bias = None if bias is None else bias[columns]
        logits = _wide(torch.nn.functional.linear(hidden, weight[columns], tile_bias))
        tile_total = logits.logsumexp(-1)
        total = tile_total if total is None else torch.logaddexp(total, tile_total)
        local = (token_ids - start).clamp(0, logits.shape[1] - 1)
        candidate = logits.gather(-1, local[:, None])[:, 0]
        is_later = token_ids >= columns.start
        chosen = candidate if chosen is None else torch.where(is_later, candidate, chosen)
    assert chosen is not None and total is not None
    return _log_probs(chosen, total)


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _log_probs(chosen: Tensor, total: Tensor) -> Tensor:
    # logsumexp is NaN, +inf or -inf exactly where the logits are no distribution.
    log_probs = (chosen - total).masked_fill(~total.isfinite(), torch.nan)
    return log_probs.to(work_device(log_probs.device)).double()
