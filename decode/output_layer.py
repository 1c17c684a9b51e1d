"""The last layer of a model: hidden states to logits, or to log-probabilities of tokens."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..kernels.token_log_probs import hidden_token_log_probs, token_log_probs

ROWS_PER_TILE = 64
"""Positions whose logits exist at once where the weight itself cannot be read."""


class OutputLayer:
    """Predicts the first `vocab_size` tokens; embeddings padded beyond them are left out."""

    def __init__(self, model: PreTrainedModel, vocab_size: int) -> None:
        self._layer = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        self.vocab_size = vocab_size

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., vocab_size) of hidden states (..., D), in the model's dtype."""
        logits: Tensor = self._layer(hidden)[..., : self.vocab_size]
        return logits

    def token_log_probs(self, hidden: Tensor, token_ids: Tensor) -> Tensor:
        """(N,) float64 nats of tokens (N,) after hidden states (N, D), tile by tile."""
        if self._has_whole_weight():
            bias = None if self._layer.bias is None else self._layer.bias[: self.vocab_size]
            weight = self._layer.weight[: self.vocab_size]
            return hidden_token_log_probs(hidden, weight, token_ids, bias)
        tiles = zip(*(torch.split(t, ROWS_PER_TILE) for t in (hidden, token_ids)), strict=True)
        return torch.cat([token_log_probs(self.logits(rows), tokens) for rows, tokens in tiles])

    def _has_whole_weight(self) -> bool:
        """False for a quantised layer and for one that tensor parallelism splits."""
        if type(self._layer) is not nn.Linear or type(self._layer.weight) is not nn.Parameter:
            return False
        return len(self._layer.weight) >= self.vocab_size
