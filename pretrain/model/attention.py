"""Attention of TinyComma: rotary embeddings in real numbers, and a mask between documents.

B rows, T tokens, H heads, D head_dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask

from ..titan import Attention, FlexAttentionWrapper, TransformerModelArgs


class RotaryAttention(Attention):
    """torchtitan's attention, to the bit, without complex numbers, which inductor cannot compile.

    Its weights have torchtitan's names and layout. It holds the table of angles itself: FSDP2 would
    cast one that is handed down from the model to the training dtype, to angles of 8 bits.
    """

    rotary_table: Tensor

    def __init__(self, model_args: TransformerModelArgs) -> None:
        super().__init__(model_args)
        self.register_buffer("rotary_table", torch.empty(0), persistent=False)
        if self.attn_type == "flex":
            self.inner_attention = DocumentAttention()

    def forward(
        self,
        x: Tensor,
        freqs_cis: Tensor | None,
        attention_masks: BlockMask | None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """x (B, T, H * D) -> alike. freqs_cis, positions: torchtitan's, not used."""
        queries, keys, values = (
            one(x).unflatten(-1, (-1, self.head_dim)) for one in (self.wq, self.wk, self.wv)
        )
        table = self.rotary_table[: x.shape[1]].unsqueeze(-3)  # the same for all heads
        masks = {} if attention_masks is None else {"block_mask": attention_masks}
        attended = self.inner_attention(
            rotate(queries, table).transpose(1, 2),
            rotate(keys, table).transpose(1, 2),
            values.transpose(1, 2),
            enable_gqa=self.enable_gqa,
            **masks,
        )
        output: Tensor = self.wo(attended.transpose(1, 2).flatten(2))
        return output


def rotary_table(freqs_cis: Tensor) -> Tensor:
    """Make the table that `rotate` multiplies with, from complex numbers of modulus 1.

    freqs_cis: (T, D / 2) complex64. Returns: (T, 2, D) float32, cosines and signed sines.
    """
    cosines, sines = freqs_cis.real, freqs_cis.imag
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


class DocumentAttention(FlexAttentionWrapper):
    """torchtitan's flex attention; on a CPU, where that has no backward, the same mask in full."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        block_mask: BlockMask,
        enable_gqa: bool = False,
    ) -> Tensor:
        """query, key, value: (B, H, T, D), of one dtype. Returns: (B, H, T, D)."""
        if not query.is_cpu:
            attended: Tensor = super().forward(
                query, key, value, block_mask=block_mask, enable_gqa=enable_gqa
            )
            return attended
        num_rows, _, seq_len, _ = query.shape
        mask = create_mask(block_mask.mask_mod, num_rows, 1, seq_len, seq_len, device="cpu")
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, enable_gqa=enable_gqa
        )
