"""Rotary embeddings in real numbers: torchtitan's to the bit."""

import pytest
import torch

from anchored.pretrain.model.attention import rotary_table, rotate
from anchored.pretrain.model.tinycomma import TinyComma, flavors
from anchored.pretrain.titan import Transformer

SEQ_LEN = 40


def tiny_args():
    args = flavors()["smoke"]
    args.vocab_size, args.max_seq_len = 50, SEQ_LEN
    return args


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_turning_is_the_complex_multiplication_to_the_bit(dtype):
    head_dim, generator = 64, torch.Generator().manual_seed(1)
    angles = 30 * torch.rand(SEQ_LEN, head_dim // 2, generator=generator)
    freqs_cis = torch.polar(torch.ones_like(angles), angles)
    shape = (2, SEQ_LEN, 3, head_dim)
    heads, gradient = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    heads.requires_grad_()
    pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))
    expected = torch.view_as_real(pairs * freqs_cis[:, None]).flatten(-2).type_as(heads)
    turned = rotate(heads, rotary_table(freqs_cis).unsqueeze(-3))
    assert torch.equal(turned, expected) and turned.dtype == dtype
    gradients = [torch.autograd.grad(one, heads, gradient)[0] for one in (turned, expected)]
    assert torch.equal(*gradients)


def test_the_model_is_torchtitans_to_the_bit():
    model, theirs = TinyComma(tiny_args()), Transformer(tiny_args())
    model.init_weights()
    theirs.load_state_dict(model.state_dict())
    token_ids = torch.randint(50, (2, SEQ_LEN), generator=torch.Generator().manual_seed(2))
    assert torch.equal(model(token_ids), theirs(token_ids))
