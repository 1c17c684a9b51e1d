"""Cross entropy of a vocabulary projection, a chunk of tokens at a time.

N tokens, D hidden_size, V vocab_size, C chunk_tokens. With N = 32,768 and V = 128,256 the logits
alone would be 17 GB in float32, and their gradient as much again; a chunk of 16,384 in bfloat16,
with its gradient, takes 8.4 GB. Every chunk adds to the float32 gradient of the weight, 12 bytes of
traffic a weight, so chunks should be as large as memory allows.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

IGNORE_INDEX = -100
"""Label of a token that has no loss and no gradient, as in torch."""

LogitLoss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    chunk_tokens: int,
    logit_loss: LogitLoss | None = None,
) -> Tensor:
    """Sum over tokens of -log softmax(hidden @ weight.T)[label], in nats.

    hidden: (N, D) any float dtype. weight: (V, D), whole: a sharded one must be gathered before.
    labels: (N,) int64 in [0, V), or IGNORE_INDEX. chunk_tokens: C, at least 1.
    logit_loss: `logit_loss_and_gradient` or a compiled form of it.
    Returns: scalar in float32 (float64 for float64 hidden). The loss and gradients are those of
    torch.nn.functional.cross_entropy on logits in the dtype of `hidden @ weight.T`; never more
    than C rows of logits exist. The gradients are computed on the way forward, as the chunk's
    logits are at hand then, so backward only scales them; twice differentiable it is not.
    Source: Hsu et al. 2024, "Liger Kernel", fused linear cross entropy.
    """
    logit_loss = logit_loss or logit_loss_and_gradient
    if torch.is_grad_enabled():
        loss: Tensor = _ChunkedCrossEntropy.apply(hidden, weight, labels, chunk_tokens, logit_loss)
        return loss
    losses = [
        logit_loss(rows @ weight.T, row_labels)[0]
        for rows, row_labels in _chunks(chunk_tokens, hidden, labels)
    ]
    return torch.stack(losses).sum()


def logit_loss_and_gradient(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Summed cross entropy of a chunk and its gradient with respect to the logits.

    logits: (C, V) any float dtype; labels: (C,) int64 or IGNORE_INDEX.
    Returns: a scalar in float32 or wider, and (C, V) in the dtype of the logits.
    """
    has_label, targets = (labels != IGNORE_INDEX)[:, None], labels[:, None]
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    log_normalizer = wide.logsumexp(-1, keepdim=True)
    losses = log_normalizer - wide.gather(-1, targets.clamp_min(0))
    probs = (wide - torch.where(has_label, log_normalizer, math.inf)).exp_()  # 0 without a label
    # Not scattered: compiled, that writes the probabilities in float32 and reads them again, 16
    # bytes a logit of bfloat16 in place of 8.
    is_target = torch.arange(logits.shape[-1], device=logits.device) == targets
    gradient = probs.sub_(is_target.to(probs.dtype))
    return torch.where(has_label, losses, 0.0).sum(), gradient.to(logits.dtype)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        chunk_tokens: int,
        logit_loss: LogitLoss,
    ) -> Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        # float32 also for bfloat16 weights: a sum over many chunks would lose its small terms.
        weight_grad = torch.zeros(weight.shape, dtype=wide, device=weight.device)
        hidden_grad = torch.empty_like(hidden)
        loss = torch.zeros((), dtype=wide, device=hidden.device)
        for rows, row_labels, row_grads in _chunks(chunk_tokens, hidden, labels, hidden_grad):
            chunk_loss, gradient = logit_loss(rows @ weight.T, row_labels)
            loss += chunk_loss
            row_grads.copy_(gradient @ weight)
            weight_grad += gradient.T @ rows
            del gradient  # or three of its size would exist in the next chunk, not two
        ctx.save_for_backward(hidden_grad, weight_grad.to(weight.dtype))
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad, weight_grad = ctx.saved_tensors
        return hidden_grad * loss_grad, weight_grad * loss_grad, None, None, None


def _chunks(chunk_tokens: int, *tensors: Tensor) -> Any:
    return zip(*(tensor.split(chunk_tokens) for tensor in tensors), strict=True)


class LossHead(nn.Linear):
    """A linear layer that takes labels and then returns the summed cross entropy of its logits.

    The loss is computed inside this module's forward because only there FSDP2 has gathered the
    weight; outside it is one shard of vocab_size / num_processes rows.
    """

    def __init__(self, hidden_size: int, vocab_size: int, *, chunk_tokens: int = 0) -> None:
        """chunk_tokens: rows of logits that exist at once with labels; 0: all of them."""
        super().__init__(hidden_size, vocab_size, bias=False)
        self.chunk_tokens = chunk_tokens
        self._chunk_loss, self._whole_loss = logit_loss_and_gradient, summed_cross_entropy

    def compile_loss(self, backend: str) -> None:
        """Make one pass over the logits of six: they are the only memory traffic of the loss."""
        self._chunk_loss = torch.compile(logit_loss_and_gradient, backend=backend)
        self._whole_loss = torch.compile(summed_cross_entropy, backend=backend)

    def forward(self, hidden: Tensor, labels: Tensor | None = None) -> Tensor:
        """hidden (B, T, D) -> logits (B, T, V); with labels (B, T) a scalar, in nats."""
        if labels is None:
            return super().forward(hidden)
        rows, row_labels = hidden.flatten(0, 1), labels.flatten()
        if not self.chunk_tokens:
            return self._whole_loss(super().forward(rows), row_labels)
        return chunked_cross_entropy(
            rows,
            self.weight,
            row_labels,
            chunk_tokens=self.chunk_tokens,
            logit_loss=self._chunk_loss,
        )


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum over tokens of -log softmax(logits)[label], in float32; (N, V), (N,) -> scalar."""
    return F.cross_entropy(logits.float(), labels, reduction="sum", ignore_index=IGNORE_INDEX)
