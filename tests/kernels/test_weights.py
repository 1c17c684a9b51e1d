"""The kernel's powers of two, in the interpreter or on a GPU."""

import pytest
import torch
import triton
import triton.language as tl

from anchored.kernels.gpu.layout import weights

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIZE = 4096


@triton.jit
def powers_kernel(bits_ptr, powers_ptr, SIZE: tl.constexpr):
    places = tl.arange(0, SIZE)
    bits = tl.load(bits_ptr + places)
    tl.store(powers_ptr + places, weights(bits, bits < 1000.0))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_powers_of_two_are_as_exact_as_the_certificate_counts_on():
    bits = 1010.0 * torch.rand(SIZE, generator=torch.Generator().manual_seed(1)).double().neg()
    bits[:4] = torch.tensor([0.0, -torch.inf, torch.nan, -0.5])
    bits = bits.to(DEVICE)
    powers = torch.empty_like(bits)
    powers_kernel[(1,)](bits, powers, SIZE=SIZE, num_warps=1)
    expected = torch.where(bits > -1000.0, bits.exp2(), 0.0)
    assert powers[:3].tolist() == [1.0, 0.0, 0.0]
    error = (powers - expected).abs()
    assert bool((error <= 2e-14 * expected).all())
    assert bool((powers[expected == 0.0] == 0.0).all())
