"""The last layer of a model: hidden states to logits, or to log-probabilities of tokens."""

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...kernels.token_log_probs import COLUMNS_PER_TILE, hidden_token_log_probs, token_log_probs
from .attention import is_hooked


class PackedLinear:
    """oneDNN's copy of a weight and the bias beside it; the copy takes as much memory again.

    Reads the weight at the speed of memory for 1 to 16 rows, where the plain layer's matrix product
    lays it out anew in every call. In float32 a row's result has the same bits however many rows
    there are, which the plain layer does not promise.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: (N, D), bias: (N,) or None, of a dtype that `can_pack` accepts."""
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight)
        self._bias = bias

    def __call__(self, hidden: Tensor) -> Tensor:
        """(..., N) of (..., D)."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self._weight, self._bias, "none", [], ""
        )
        return output.view(*hidden.shape[:-1], -1)


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN computes with this weight in its own dtype here."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


ROWS_PER_TILE = 64
"""Positions whose logits exist at once for all tokens."""

_packed: WeakKeyDictionary[nn.Module, tuple[object, PackedLinear]] = WeakKeyDictionary()
"""By layer, with the version of its weight: every stream of a model reads one copy."""


class OutputLayer:
    """Predicts the first `vocab_size` tokens; embeddings padded beyond them are left out.

    The layer is asked for at every use, and its weight is read without calling it only while it is
    a plain linear layer: one that was replaced, adapted, split, quantised or given a hook or a
    forward of its own, whenever that was, is called. Raises ValueError while the model itself has a
    hook, which nothing but a call of the whole model would run.

    packs: keep a copy of the weight that a CPU reads faster where there can be one (see
    `PackedLinear`), made when the first logits are asked for, and anew once the weight has changed.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int, *, packs: bool = False) -> None:
        self._model, self.vocab_size, self._packs = model, vocab_size, packs

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., vocab_size) of hidden states (..., D), in the model's dtype."""
        layer = self._layer
        if self._packs and self._has_whole_weight(layer) and can_pack(layer.weight):
            return self._packed_layer(layer)(hidden)
        logits: Tensor = layer(hidden)[..., : self.vocab_size]
        return logits

    def token_log_probs(self, hidden: Tensor, token_ids: Tensor) -> Tensor:
        """(N,) float64 nats of tokens (N,) after hidden states (N, D), tile by tile."""
        layer = self._layer
        if self._has_whole_weight(layer):
            weight, bias = self._predicting(layer)
            return hidden_token_log_probs(hidden, weight, token_ids, bias)
        tiles = zip(*(torch.split(t, ROWS_PER_TILE) for t in (hidden, token_ids)), strict=True)
        return torch.cat([token_log_probs(self.logits(rows), tokens) for rows, tokens in tiles])

    def tiles(self, hidden: Tensor, token_ids: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Logits of given tokens (C,) after hidden states (N, D), some columns at a time.

        Yields: the first column and (N, T) in the model's dtype, in order. Logits of few rows are
        put in order, else the weights are: whichever is less to copy.
        """
        token_ids = token_ids.to(hidden.device)
        if len(hidden) <= ROWS_PER_TILE or not self._has_whole_weight(self._layer):
            ordered = self.logits(hidden).index_select(-1, token_ids)
            tiles = iter(torch.split(ordered, COLUMNS_PER_TILE, -1))
        else:
            chosen = torch.split(token_ids, COLUMNS_PER_TILE)
            tiles = (self._chosen_logits(hidden, tile) for tile in chosen)
        yield from zip(range(0, len(token_ids), COLUMNS_PER_TILE), tiles, strict=True)

    @property
    def _layer(self) -> Any:
        """The layer as it is now."""
        if is_hooked(self._model):
            raise ValueError(
                f"the model ({self._model.config.model_type}) has a hook or a forward of its own, "
                "which decoding in rows passes by: set it before the ModelPair is made"
            )
        return self._model.get_output_embeddings()  # type: ignore[no-untyped-call]

    def _packed_layer(self, layer: nn.Linear) -> PackedLinear:
        version = (self.vocab_size, *(_version(tensor) for tensor in (layer.weight, layer.bias)))
        if layer not in _packed or _packed[layer][0] != version:
            _packed[layer] = version, PackedLinear(*self._predicting(layer))
        return _packed[layer][1]

    def _predicting(self, layer: nn.Linear) -> tuple[Tensor, Tensor | None]:
        """Weight (vocab_size, D) and bias (vocab_size,) of the tokens that are predicted."""
        weight, bias = layer.weight[: self.vocab_size], layer.bias
        return weight, None if bias is None else bias[: self.vocab_size]

    def _chosen_logits(self, hidden: Tensor, token_ids: Tensor) -> Tensor:
        weight, bias = self._predicting(self._layer)
        # index_select copies whole rows: a third of the time of indexing.
        chosen = weight.index_select(0, token_ids)
        return nn.functional.linear(hidden, chosen, None if bias is None else bias[token_ids])

    def _has_whole_weight(self, layer: nn.Module) -> bool:
        """False for a quantised layer, one that tensor parallelism splits, and one with hooks."""
        if type(layer) is not nn.Linear or type(layer.weight) is not nn.Parameter:
            return False
        return len(layer.weight) >= self.vocab_size and not is_hooked(layer)


def _version(tensor: Tensor | None) -> object:
    """What changes when a tensor is replaced or written to."""
    if tensor is None:
        return None
    # Nothing but inference mode writes to an inference tensor, which counts no versions.
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version
