"""The last layer of a model: hidden states to logits, or to log-probabilities of tokens."""

from collections.abc import Iterator
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..kernels.token_log_probs import (
    COLUMNS_PER_TILE,
    hidden_token_log_probs,
    token_log_probs,
)
from .packed_linear import PackedLinear, can_pack

ROWS_PER_TILE = 64
"""Positions whose logits exist at once for all tokens."""

_packed: WeakKeyDictionary[nn.Module, tuple[object, PackedLinear]] = WeakKeyDictionary()
"""By layer, with the version of its weight: every stream of a model reads one copy."""


class OutputLayer:
    """Predicts the first `vocab_size` tokens; embeddings padded beyond them are left out.

    packs: keep a copy of the weight that a CPU reads faster where there can be one (see
    `PackedLinear`), made when the first logits are asked for, and anew once the weight has changed.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int, *, packs: bool = False) -> None:
        self._layer = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        self.vocab_size = vocab_size
        self._packs = packs and self._has_whole_weight() and can_pack(self._layer.weight)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., vocab_size) of hidden states (..., D), in the model's dtype."""
        if self._packs:
            return self._packed_layer()(hidden)
        logits: Tensor = self._layer(hidden)[..., : self.vocab_size]
        return logits

    def _packed_layer(self) -> PackedLinear:
        weight = self._layer.weight
        # Nothing but inference mode writes to an inference tensor, which counts no versions.
        count = 0 if weight.is_inference() else weight._version
        version = (weight.data_ptr(), count, self.vocab_size)
        if self._layer not in _packed or _packed[self._layer][0] != version:
            _packed[self._layer] = version, PackedLinear(*self._predicting())
        return _packed[self._layer][1]

    def _predicting(self) -> tuple[Tensor, Tensor | None]:
        """Weight (vocab_size, D) and bias (vocab_size,) of the tokens that are predicted."""
        weight, bias = self._layer.weight[: self.vocab_size], self._layer.bias
        return weight, None if bias is None else bias[: self.vocab_size]

    def token_log_probs(self, hidden: Tensor, token_ids: Tensor) -> Tensor:
        """(N,) float64 nats of tokens (N,) after hidden states (N, D), tile by tile."""
        if self._has_whole_weight():
            weight, bias = self._predicting()
            return hidden_token_log_probs(hidden, weight, token_ids, bias)
        tiles = zip(*(torch.split(t, ROWS_PER_TILE) for t in (hidden, token_ids)), strict=True)
        return torch.cat([token_log_probs(self.logits(rows), tokens) for rows, tokens in tiles])

    def tiles(self, hidden: Tensor, token_ids: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Logits of given tokens (C,) after hidden states (N, D), some columns at a time.

        Yields: the first column and (N, T) in the model's dtype, in order. Logits of few rows are
        put in order, else the weights are: whichever is less to copy.
        """
        token_ids = token_ids.to(hidden.device)
        if len(hidden) <= ROWS_PER_TILE or not self._has_whole_weight():
            ordered = self.logits(hidden).index_select(-1, token_ids)
            tiles = iter(torch.split(ordered, COLUMNS_PER_TILE, -1))
        else:
            chosen = torch.split(token_ids, COLUMNS_PER_TILE)
            tiles = (self._chosen_logits(hidden, tile) for tile in chosen)
        yield from zip(range(0, len(token_ids), COLUMNS_PER_TILE), tiles, strict=True)

    def _chosen_logits(self, hidden: Tensor, token_ids: Tensor) -> Tensor:
        weight, bias = self._predicting()
        # index_select copies whole rows: a third of the time of indexing.
        chosen = weight.index_select(0, token_ids)
        return nn.functional.linear(hidden, chosen, None if bias is None else bias[token_ids])

    def _has_whole_weight(self) -> bool:
        """False for a quantised layer and for one that tensor parallelism splits."""
        if type(self._layer) is not nn.Linear or type(self._layer.weight) is not nn.Parameter:
            return False
        return len(self._layer.weight) >= self.vocab_size
