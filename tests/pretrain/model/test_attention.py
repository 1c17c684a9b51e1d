"""Attention: rotations to the bit, and documents under a mask as if they were alone."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention

from anchored.pretrain.model.attention import DocumentAttention, document_mask, rotary_table, rotate

EOS = 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_turning_is_the_complex_multiplication_to_the_bit(dtype):
    head_dim, generator = 64, torch.Generator().manual_seed(1)
    rates = torch.tensor([500 ** (-2 * pair / head_dim) for pair in range(head_dim // 2)])
    angles = torch.outer(torch.arange(40.0), rates)
    table = rotary_table(40, head_dim, 500.0)
    turns = torch.complex(table[:, 0, ::2], table[:, 1, 1::2])
    torch.testing.assert_close(turns, torch.polar(torch.ones_like(angles), angles))
    shape = (2, 40, 3, head_dim)
    heads, gradient = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    heads.requires_grad_()
    pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))
    expected = torch.view_as_real(pairs * turns[:, None]).flatten(-2).type_as(heads)
    turned = rotate(heads, table.unsqueeze(-3))
    assert torch.equal(turned, expected) and turned.dtype == dtype
    gradients = [torch.autograd.grad(one, heads, gradient)[0] for one in (turned, expected)]
    assert torch.equal(*gradients)


def attend(query, key, value, mask):
    return DocumentAttention(DocumentAttention.Config())(query, key, value, attention_masks=mask)


def attention_inputs(num_rows, num_tokens, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (3, num_rows, num_tokens, 2, 16)
    return torch.randn(shape, generator=generator, dtype=dtype).unbind()


@given(
    ends=st.lists(st.lists(st.booleans(), min_size=20, max_size=20), min_size=1, max_size=3),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=10)
def test_attention_is_causal_attention_in_each_document_by_itself(ends, seed):
    token_ids = torch.where(torch.tensor(ends), EOS, 1)
    query, key, value = attention_inputs(*token_ids.shape, torch.float64, seed)
    mask = document_mask(token_ids, eos_id=EOS)
    attended = attend(query, key, value, mask)
    for row, is_end in enumerate(ends):
        begins = [index + 1 for index, ends_here in enumerate(is_end[:-1]) if ends_here]
        for first, last in pairwise([0, *begins, len(is_end)]):
            pieces = [one[row, first:last].transpose(0, 1) for one in (query, key, value)]
            alone = F.scaled_dot_product_attention(*pieces, is_causal=True)
            torch.testing.assert_close(attended[row, first:last].transpose(0, 1), alone)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_cpu_computes_what_flex_attention_does():
    # Blocks of 128: some are full, some empty, some partial.
    token_ids = torch.ones(2, 384, dtype=torch.int64)
    token_ids[:, 299] = token_ids[0, 99] = EOS
    mask = document_mask(token_ids, eos_id=EOS)
    query, key, value = attention_inputs(2, 384, torch.float32, seed=8)
    with torch.no_grad():
        heads = (one.transpose(1, 2) for one in (query, key, value))
        expected = flex_attention(*heads, block_mask=mask).transpose(1, 2)
        actual = attend(query, key, value, mask)
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6)
