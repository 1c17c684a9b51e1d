"""Attention of TinyComma: rotary embeddings in real numbers, as inductor compiles no complex ones,
and a mask between documents.

B rows, T tokens, H heads, D head_dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask

from ..titan import FlexAttention, ScaledDotProductAttention


class RotaryAttention(nn.Module):
    """Causal attention without grouped queries: as many heads of keys as of queries."""

    def __init__(self, dim: int, num_heads: int, *, masks_documents: bool) -> None:
        """masks_documents: attention_masks say what a token attends to; else all before it."""
        super().__init__()
        self.head_dim = dim // num_heads
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        kind = DocumentAttention if masks_documents else ScaledDotProductAttention
        self.inner_attention = kind(kind.Config())

    def forward(self, x: Tensor, table: Tensor, attention_masks: BlockMask | None) -> Tensor:
        """x (B, T, H * D), table of `rotary_table` (at least T, 2, D) -> alike."""
        queries, keys, values = (
            one(x).unflatten(-1, (-1, self.head_dim)) for one in (self.wq, self.wk, self.wv)
        )
        table = table[: x.shape[1]].unsqueeze(-3)  # the same for all heads
        attended = self.inner_attention(
            rotate(queries, table), rotate(keys, table), values, attention_masks=attention_masks
        )
        output: Tensor = self.wo(attended.flatten(2))
        return output


def rotary_table(seq_len: int, head_dim: int, theta: float) -> Tensor:
    """Make the table that `rotate` multiplies with, on torch's present device.

    The pair i of a head turns at position t by t * theta**(-2 * i / D). Returns: (T, 2, D) float32,
    cosines and signed sines. Source: Su et al. 2021, "RoFormer", section 3.2.2.
    """
    pairs = torch.arange(0, head_dim, 2).float()
    angles = torch.outer(torch.arange(seq_len).float(), 1.0 / theta ** (pairs / head_dim))
    turns = torch.polar(torch.ones_like(angles), angles)
    cosines, sines = turns.real, turns.imag
    signed = torch.stack([-sines, sines], dim=-1).flatten(-2)
    return torch.stack([cosines.repeat_interleave(2, dim=-1), signed], dim=-2)


def rotate(heads: Tensor, table: Tensor) -> Tensor:
    """Turn the pairs (0, 1), (2, 3), ... of each head by the angles of its position.

    heads: (B, T, H, D) any float dtype; table: (T, 1, 2, D), of `rotary_table`.
    Returns: as heads; computed in float32, with the products and sums of a complex multiplication.
    """
    cosines, sines = table.unbind(-2)
    wide = heads.float()
    swapped = wide.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return (wide * cosines + swapped * sines).type_as(heads)


def document_mask(token_ids: Tensor, *, eos_id: int) -> BlockMask:
    """The mask under which a token attends to itself and to what precedes it in its document.

    token_ids: (B, T) int64, in which each document ends with EOS; the mask is on their device.
    """
    is_end = (token_ids == eos_id).int()
    document_ids = is_end.cumsum(dim=1, dtype=torch.int32) - is_end

    def attends(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (document_ids[row, query] == document_ids[row, key])

    num_rows, seq_len = token_ids.shape
    device = str(token_ids.device)
    return create_block_mask(attends, num_rows, None, seq_len, seq_len, device=device)


class DocumentAttention(FlexAttention):
    """torchtitan's flex attention; on a CPU, where that has no backward, the same mask in full."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, attention_masks: BlockMask
    ) -> Tensor:
        """query, key, value: (B, T, H, D), of one dtype. Returns: (B, T, H, D)."""
        if not query.is_cpu:
            return super().forward(query, key, value, attention_masks=attention_masks)
        num_rows, seq_len = query.shape[:2]
        mask = create_mask(attention_masks.mask_mod, num_rows, 1, seq_len, seq_len, device="cpu")
        query, key, value = (one.transpose(1, 2) for one in (query, key, value))
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return attended.transpose(1, 2)
