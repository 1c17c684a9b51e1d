"""Linear layers of a model: several as one, packed where a CPU gains, and the output layer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ...kernels.token_log_probs import hidden_token_log_probs, token_log_probs
from .attention import is_hooked

# N rows of input, D and O sizes of input and output.

PACKED_SHARE = 0.25
"""Of the memory that is free: the most that packed copies of a model's layers may take."""

LEAST_PACKED = 1 << 18
"""Numbers of a weight below which oneDNN's call takes longer than what it gains for one row, and
below half of which for several; a layer of 256 x 1,408 gains nothing for one row and half of the
time for four."""

NUM_SAMPLED = 64
"""Numbers of a weight by which a write to all of it is noticed."""

MEMORY_FILE = "/proc/meminfo"
"""Of Linux."""


class Linear(NamedTuple):
    """A linear layer without a module's call, which takes as long as a small product."""

    weight: Tensor
    """(O, D)."""
    bias: Tensor | None

    def __call__(self, hidden: Tensor) -> Tensor:
        """(..., O) of (..., D)."""
        return functional.linear(hidden, self.weight, self.bias)


class PackedLinear:
    """oneDNN's copy of a weight and the bias beside it; the copy takes as much memory again.

    Reads the weight at the speed of memory for 1 to 16 rows, where the plain layer's matrix product
    lays it out anew in every call. In float32 a row's result has the same bits however many rows
    there are, which the plain layer does not promise, to which a single row may be left.
    """

    def __init__(self, plain: Linear, *, leaves_one_row: bool = False) -> None:
        """plain: of a dtype that `can_pack` accepts; it computes single rows if they are left."""
        weight, self._bias = plain
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight)
        self._product = torch.ops.mkldnn._linear_pointwise.default
        self._of_one_row = plain if leaves_one_row else None

    def __call__(self, hidden: Tensor) -> Tensor:
        """(..., O) of (..., D)."""
        if self._of_one_row is not None and hidden.numel() == hidden.shape[-1]:
            return self._of_one_row(hidden)
        rows = hidden if hidden.ndim == 2 else hidden.reshape(-1, hidden.shape[-1])
        output: Tensor = self._product(rows, self._weight, self._bias, "none", [], "")
        return output if hidden.ndim == 2 else output.view(*hidden.shape[:-1], -1)


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN computes with this weight in its own dtype here."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


_packed: WeakKeyDictionary[nn.Module, tuple[object, PackedLinear]] = WeakKeyDictionary()
"""By (first) layer, with the version of what it was made of: all streams of a model read one."""


def packed(
    modules: Sequence[nn.Linear], plain: Linear, *, leaves_one_row: bool = False
) -> PackedLinear:
    """The packed copy of `plain`, made of these layers; anew once one of them has changed."""
    tensors = [tensor for module in modules for tensor in (module.weight, module.bias)]
    version = (len(plain.weight), *map(_version, tensors))
    if modules[0] not in _packed or _packed[modules[0]][0] != version:
        _packed[modules[0]] = version, PackedLinear(plain, leaves_one_row=leaves_one_row)
    return _packed[modules[0]][1]


def _version(tensor: Tensor | None) -> object:
    """What changes when a tensor is replaced or written to."""
    if tensor is None:
        return None
    # Inference tensors count no versions, nor do writes through `.data`, by which adapters are
    # merged: some numbers tell of those.
    sample = tensor.data.view(-1)[:: max(1, tensor.numel() // NUM_SAMPLED)]
    version = 0 if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), version, sample.nan_to_num().sum().item()


def packs_layers(modules: Sequence[nn.Linear]) -> bool:
    """Whether a model's layers, all that one step reads, are to be packed.

    That is where oneDNN can, and while the copies take a quarter of the free memory at most; what
    is packed stays so.
    """
    if not can_pack(modules[0].weight):
        return False
    num_bytes = sum(module.weight.nbytes for module in modules)
    return any(m in _packed for m in modules) or num_bytes <= PACKED_SHARE * free_bytes()


def free_bytes() -> int:
    """Memory of the machine that can be taken without swapping; 0 where it cannot be told."""
    try:
        lines = Path(MEMORY_FILE).read_text().splitlines()
    except OSError:  # not Linux
        return 0
    amounts = dict(line.split(":") for line in lines)
    return 1024 * int(amounts["MemAvailable"].split()[0])


def fused(*modules: nn.Linear, packs: bool) -> Linear | PackedLinear:
    """One product in place of several that have the same input.

    The modules' weights are views of its rows from here on: nothing stands twice. packs: but for a
    packed copy of what is not small, see `packs_layers`.
    """
    weight = _whole_of([module.weight for module in modules])
    if weight is None:
        weight = _moved(modules)
    bias = None
    if any(module.bias is not None for module in modules):
        biases = (weight.new_zeros(len(m.weight)) if m.bias is None else m.bias for m in modules)
        bias = torch.cat([*biases]).detach()
    plain = Linear(weight, bias)
    if not packs or 2 * weight.numel() < LEAST_PACKED:
        return plain
    return packed(modules, plain, leaves_one_row=weight.numel() < LEAST_PACKED)


def _whole_of(parts: Sequence[Tensor]) -> Tensor | None:
    """The tensor whose rows are those of the parts, in order; None unless they lie like that."""
    storage, place = parts[0].untyped_storage(), parts[0].storage_offset()
    for part in parts:
        is_beside = part.untyped_storage().data_ptr() == storage.data_ptr()
        if not (is_beside and part.storage_offset() == place and part.is_contiguous()):
            return None
        place += part.numel()
    size = (sum(map(len, parts)), parts[0].shape[1])
    return parts[0].detach().as_strided(size, parts[0].stride())


@torch.no_grad()
def _moved(modules: Sequence[nn.Linear]) -> Tensor:
    """The weights of the modules, moved into one tensor."""
    with torch.inference_mode(False):  # nobody could write to its tensors later
        whole = torch.cat([module.weight for module in modules])
        parts = torch.split(whole, [len(module.weight) for module in modules])
        for module, rows in zip(modules, parts, strict=True):
            if module.weight.is_inference():
                module.weight = nn.Parameter(rows, requires_grad=False)
            else:
                module.weight.data = rows  # the same parameter, which others may hold
    return whole


# N positions.

ROWS_PER_TILE = 64
"""Positions whose logits exist at once for all tokens."""


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
            return packed([layer], self._predicting(layer))(hidden)
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

    @property
    def _layer(self) -> Any:
        """The layer as it is now."""
        if is_hooked(self._model):
            raise ValueError(
                f"the model ({self._model.config.model_type}) has a hook or a forward of its own, "
                "which decoding in rows passes by: set it before the ModelPair is made"
            )
        return self._model.get_output_embeddings()  # type: ignore[no-untyped-call]

    def _predicting(self, layer: nn.Linear) -> Linear:
        """Weight (vocab_size, D) and bias (vocab_size,) of the tokens that are predicted."""
        weight, bias = layer.weight[: self.vocab_size], layer.bias
        return Linear(weight, None if bias is None else bias[: self.vocab_size])

    def _has_whole_weight(self, layer: nn.Module) -> bool:
        """False for a quantised layer, one that tensor parallelism splits, and one with hooks."""
        if type(layer) is not nn.Linear or type(layer.weight) is not nn.Parameter:
            return False
        return len(layer.weight) >= self.vocab_size and not is_hooked(layer)
