"""The chunked loss is torch's cross entropy, gradients included, in a fraction of the memory."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from anchored.pretrain.model.loss import IGNORE_INDEX, chunked_cross_entropy


def inputs(num_tokens, vocab_size, *, seed=0, dtype=torch.float64, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    hidden = scale * torch.randn(num_tokens, 16, generator=generator, dtype=torch.float64)
    weight = torch.randn(vocab_size, 16, generator=generator, dtype=torch.float64)
    labels = torch.randint(vocab_size, (num_tokens,), generator=generator)
    tensors = [tensor.to(dtype).requires_grad_() for tensor in (hidden, weight)]
    return *tensors, labels


def plain(hidden, weight, labels):
    return F.cross_entropy((hidden @ weight.T), labels, reduction="sum", ignore_index=IGNORE_INDEX)


def loss_and_gradients(function, hidden, weight, labels, factor=0.37):
    loss = function(hidden, weight, labels)
    return loss.detach(), *torch.autograd.grad(factor * loss, [hidden, weight])


def chunked(chunk_tokens):
    return lambda *tensors: chunked_cross_entropy(*tensors, chunk_tokens=chunk_tokens)


@given(
    num_tokens=st.integers(1, 20),
    vocab_size=st.sampled_from([1, 2, 33, 257]),
    chunk_tokens=st.integers(1, 25),
    num_ignored=st.integers(0, 3),
    scale=st.sampled_from([0.01, 1.0, 100.0]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60)
def test_loss_and_gradients_are_those_of_torch(
    num_tokens, vocab_size, chunk_tokens, num_ignored, scale, seed
):
    hidden, weight, labels = inputs(num_tokens, vocab_size, seed=seed, scale=scale)
    labels[:num_ignored] = IGNORE_INDEX
    expected = loss_and_gradients(plain, hidden, weight, labels)
    actual = loss_and_gradients(chunked(chunk_tokens), hidden, weight, labels)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_types_are_as_close_to_float64_as_torch_is(dtype):
    narrow = inputs(64, 1000, dtype=dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in narrow[:2]]
    expected = loss_and_gradients(plain, *exact, narrow[2])
    actual = loss_and_gradients(chunked(10), *narrow)
    epsilon = torch.finfo(dtype).eps
    for one, other in zip(actual, expected, strict=True):
        error = (one.double() - other).norm() / other.norm()
        assert error < 4 * epsilon
    assert [one.dtype for one in actual] == [torch.float32, dtype, dtype]


class LargestTensor(TorchDispatchMode):
    """Remembers how many numbers the largest tensor has that any operation gives."""

    numel = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        output = operation(*args, **(kwargs or {}))
        sizes = [one.numel() for one in pytree.tree_leaves(output) if torch.is_tensor(one)]
        self.numel = max(self.numel, *sizes, 0)
        return output


def test_the_logits_of_all_tokens_never_exist_at_once():
    hidden, weight, labels = inputs(256, 1000)
    largest = []
    for function in (chunked(20), plain):
        with LargestTensor() as mode:
            function(hidden, weight, labels).backward()
        largest.append(mode.numel)
    assert largest == [20 * 1000, 256 * 1000]
