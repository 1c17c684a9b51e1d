"""A linear layer on the CPU whose weight is laid out once for a few rows at a time."""

import torch
from torch import Tensor


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
