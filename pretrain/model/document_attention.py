"""Attention within documents: B rows, H heads, T tokens, D head_dim."""

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask
from torchtitan.models.attention import FlexAttentionWrapper


def document_mask(document_ids: Tensor) -> BlockMask:
    """The mask under which a token attends to itself and to what precedes it in its document.

    document_ids: (B, T) int64, as of `document_ids.document_ids`; the mask is on their device.
    """

    def attends(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (document_ids[row, query] == document_ids[row, key])

    num_rows, seq_len = document_ids.shape
    return create_block_mask(
        attends, num_rows, None, seq_len, seq_len, device=str(document_ids.device)
    )


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
