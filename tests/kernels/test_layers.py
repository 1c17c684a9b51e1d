"""The parts of a Llama layer against their definitions in float64, in torch and in Triton."""

import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from anchored.kernels import layers
from anchored.kernels.gpu import layers as gpu_layers
from anchored.kernels.layers import HeadSplit, add_and_norm, gated, rotated_heads, store_heads

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPS = 1e-5
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
"""Of results as a share of the largest: two roundings of the dtype, some more of float32."""

backends = pytest.mark.parametrize("backend", ["torch", "triton"])
dtypes = pytest.mark.parametrize("dtype", ROUNDING, ids=str)


def drawn(*shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def assert_near(actual, expected):
    """As near as rounding of the result's own dtype allows."""
    error = (actual.double() - expected.double()).abs().max() / expected.abs().max()
    assert error <= ROUNDING[actual.dtype]


def normed(x, weight):
    x = x.double()
    return x * weight.double() / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


@backends
@dtypes
@pytest.mark.parametrize("size", [1, 16, 257, 2048])
def test_a_norm_follows_the_sum_which_stays(size, dtype, backend):
    hidden, update = (drawn(3, size, dtype=dtype, seed=seed) for seed in (1, 2))
    weight = drawn(size, dtype=dtype, seed=3)
    expected = hidden.clone()
    assert_near(add_and_norm(hidden, None, weight, EPS, backend=backend), normed(expected, weight))
    torch.testing.assert_close(hidden, expected, rtol=0, atol=0)
    actual = add_and_norm(hidden, update, weight, EPS, backend=backend)
    # Triton's interpreter cuts bfloat16 off where a device rounds.
    assert_near(hidden, expected.double() + update.double())
    assert_near(actual, normed(hidden, weight))


@backends
@dtypes
@pytest.mark.parametrize("width", [1, 24, 1025])
def test_the_gate_multiplies_the_other_half(width, dtype, backend):
    gate_up = 4.0 * drawn(3, 2 * width, dtype=dtype)
    gate, up = gate_up.double().chunk(2, -1)
    assert_near(gated(gate_up, backend=backend), functional.silu(gate) * up)


def split_of(num_heads, num_key_heads, size, dtype, *, has_norms):
    norms = tuple(drawn(size, dtype=dtype, seed=seed) for seed in (7, 8)) if has_norms else None
    return HeadSplit(num_heads, num_key_heads, size, norms, EPS)


def defined_heads(product, angles, split):
    """Queries, keys and values, (N, heads, E) float64, from the definition of a rotation."""
    heads = product.double().view(len(product), -1, split.size)
    groups = list(heads.split([split.num_heads, split.num_key_heads, split.num_key_heads], 1))
    for place in (0, 1):
        if split.norms is not None:
            groups[place] = normed(groups[place], split.norms[place])
        pairs = torch.complex(*groups[place].chunk(2, -1))
        turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
        groups[place] = torch.cat([turned.real, turned.imag], -1)
    return groups


@backends
@dtypes
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize(("num_columns", "sizes"), [(1, (4, 2, 16)), (3, (3, 1, 20))])
def test_heads_are_rotated_and_stored_at_their_columns(
    num_columns, sizes, has_norms, dtype, backend
):
    num_rows, capacity, split = 2, 9, split_of(*sizes, dtype, has_norms=has_norms)
    num_heads, num_key_heads, size = sizes
    width = (num_heads + 2 * num_key_heads) * size
    product = drawn(num_rows * num_columns, width, dtype=dtype)
    angles = 7.0 * drawn(len(product), size // 2, dtype=torch.float64, seed=4)
    # Of another shape each, as parts of wider storage are.
    shape = (num_rows, num_key_heads, capacity, size)
    keys = torch.full(shape, 5.0, device=DEVICE, dtype=dtype)
    values = torch.full((*shape[:2], capacity + 3, size), 5.0, device=DEVICE, dtype=dtype)[:, :, 3:]
    columns = torch.tensor([[2, 3, 4], [6, 7, 8]], device=DEVICE)[:, :num_columns]
    cos, signed = angles.cos().float(), torch.cat([-angles, angles], -1).sin().float()
    cos = torch.cat([cos, cos], -1)
    query = store_heads(product, cos, signed, split, (keys, values), columns, backend=backend)
    expected = defined_heads(product, angles, split)
    for actual, definition in zip(
        rotated_heads(product, cos, signed, split), expected, strict=True
    ):
        assert_near(actual, definition)
    assert_near(query, expected[0])
    for storage, states in zip((keys, values), expected[1:], strict=True):
        place = columns[:, None, :, None].expand(-1, num_key_heads, -1, size)
        by_row = states.view(num_rows, num_columns, num_key_heads, size).transpose(1, 2)
        assert_near(storage.gather(2, place), by_row)
        untouched = storage.scatter(2, place, 5.0)
        assert (untouched == 5.0).all()  # nothing else was written


def test_on_the_cpu_torch_is_the_default(monkeypatch):
    monkeypatch.setattr(gpu_layers, "gated", lambda gate_up: "by Triton")
    assert gated(torch.ones(1, 2)).shape == (1, 1)
    assert gated(torch.ones(1, 2), backend="triton") == "by Triton"
    with pytest.raises(ValueError, match="backend must be one of auto, torch, triton, got 'cuda'"):
        layers.gated(torch.ones(1, 2), backend="cuda")


PROGRAM = """
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

class NoDevice:  # compiles for an H100 or H200 and launches nothing
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device=0): return 0
    def get_active_torch_device(self): return torch.device("cpu")

driver.set_active(NoDevice())
from anchored.kernels import layers
from anchored.kernels.gpu import layers as gpu_layers
from anchored.kernels.gpu import layers as gpu

class Compiled:
    def __init__(self, kernel): self.kernel = kernel
    def __getitem__(self, grid):
        return lambda *a, **k: print(
            self.kernel.run(*a, grid=grid, warmup=True, **k).asm["ptx"].count(".entry")
        )

for name in ("add_and_norm_kernel", "gated_kernel", "store_heads_kernel"):
    setattr(gpu, name, Compiled(getattr(gpu, name)))
D, H, G, E, F, T = 4096, 32, 8, 128, 14336, 2
for dtype in (torch.bfloat16, torch.float16, torch.float32):
    hidden = torch.zeros(2 * T, D, dtype=dtype)
    for update in (None, hidden.clone()):
        layers.add_and_norm(hidden, update, hidden[0], 1e-5, backend="triton")
    layers.gated(torch.zeros(2, 2 * F, dtype=dtype), backend="triton")
    weights = torch.zeros(E, dtype=dtype)
    for norms in (None, (weights, weights)):
        for head_size in (E, 80):
            product = torch.zeros(2 * T, (H + 2 * G) * head_size, dtype=dtype)
            angles = torch.zeros(2 * T, head_size)
            storage = (torch.zeros(2, G, 64, head_size, dtype=dtype),) * 2
            split = layers.HeadSplit(H, G, head_size, norms, 1e-5)
            columns = torch.zeros(2, T, dtype=torch.int64)
            layers.store_heads(product, angles, angles, split, storage, columns, backend="triton")
"""


@pytest.mark.slow
def test_every_launch_compiles_for_sm_90():
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_DEFAULT_FP_FUSION"] = "1"
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["1"] * 3 * 7
