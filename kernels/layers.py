"""The parts of a Llama layer between its products: norm and sum, rotated heads, gate."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .backend import resolved_backend

# S rows of storage, T new columns of each, N = S T tokens, D hidden size, H query heads, G key
# heads, C columns of storage, E head size, F width of the gated layer.

Backend = Literal["auto", "torch", "triton"]
"""Of each function here: "torch" is a few operations, "triton" one kernel, whose sums and products
are float32 whatever the dtype; "auto" is triton for CUDA tensors."""


class HeadSplit(NamedTuple):
    """How a product is split into heads, and the root mean square norms of Qwen 3's."""

    num_heads: int
    num_key_heads: int
    size: int
    """E, even: the halves are the coordinates that are rotated."""
    norms: tuple[Tensor, Tensor] | None
    """(E,) each: weights for queries and keys."""
    eps: float
    """Of the norms."""


def add_and_norm(
    hidden: Tensor, update: Tensor | None, weight: Tensor, eps: float, *, backend: Backend = "auto"
) -> Tensor:
    """(N, D): x w / sqrt(mean(x^2) + eps) with x = hidden + update, which replaces `hidden`.

    hidden, update: (N, D), contiguous, one dtype; weight: (D,).
    """
    if resolved_backend(backend, hidden.device) == "triton":
        from .gpu import layers  # triton is not there on every platform

        return layers.add_and_norm(hidden, update, weight, eps)
    if update is not None:
        hidden.add_(update)
    return torch.rms_norm(hidden, weight.shape, weight, eps)


def gated(gate_up: Tensor, *, backend: Backend = "auto") -> Tensor:
    """silu(gate) * up, (N, F), of both side by side: (N, 2 F), contiguous."""
    if resolved_backend(backend, gate_up.device) == "triton":
        from .gpu import layers

        return layers.gated(gate_up)
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate).mul_(up)


def rotated_heads(
    product: Tensor, cos: Tensor, sin: Tensor, split: HeadSplit
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (N, H, E), keys and values (N, G, E), by torch.

    product: (N, (H + 2 G) E), queries, keys and values side by side. cos, sin: (N, E) float32 of
    each token's angles; the sines of the first half have the other sign.
    """
    num_turned = split.num_heads + split.num_key_heads
    heads = product.view(product.shape[0], -1, split.size)  # len() takes a few times as long
    turned, value = heads[:, :num_turned], heads[:, num_turned:]
    if split.norms is not None:
        parts = zip(torch.tensor_split(turned, (split.num_heads,), 1), split.norms, strict=True)
        normed = [torch.rms_norm(x, (split.size,), weight, split.eps) for x, weight in parts]
        turned = torch.cat(normed, 1)
    swapped = turned.roll(split.size // 2, -1)
    turned = torch.addcmul(turned * cos[:, None], swapped, sin[:, None]).to(product.dtype)
    return turned[:, : split.num_heads], turned[:, split.num_heads :], value


def store_heads(
    product: Tensor,
    cos: Tensor,
    sin: Tensor,
    split: HeadSplit,
    storage: tuple[Tensor, Tensor],
    columns: Tensor,
    *,
    backend: Backend = "auto",
) -> Tensor:
    """Queries (N, H, E) of `rotated_heads`; its keys and values go to their columns of the storage.

    storage: keys and values, (S, G, C, E) each, last dimension contiguous. columns: (S, T) int64 in
    [0, C), read on the device alone.
    """
    if resolved_backend(backend, product.device) == "triton":
        from .gpu import layers

        return layers.store_heads(product, cos, sin, split, storage, columns)
    query, *states = rotated_heads(product, cos, sin, split)
    rows = torch.arange(len(columns), device=columns.device)[:, None]
    for target, new in zip(storage, states, strict=True):
        target[rows, :, columns] = new.view(*columns.shape, *new.shape[1:])
    return query
