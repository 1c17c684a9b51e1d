"""The device and the sizes of these tests, which need a GPU: `make test-gpu`.

The code of the kernels' tests runs small in Triton's interpreter too, where there is no GPU.
"""

from dataclasses import dataclass

import pytest
import torch


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the inputs of the kernels' tests are."""

    shapes: tuple[tuple[int, int], ...]
    """Rows and tokens of logits."""
    extreme_shapes: tuple[tuple[int, int], ...]
    batch_shape: tuple[int, int]
    """Rows that are alone and together."""
    num_draws: int
    """From one distribution of 257 tokens."""


FULL = Sizes(
    ((64, 1), (64, 17), (256, 257), (32, 1025), (16, 32_000), (4, 128_256)),
    ((1, 1), (1024, 257), (1, 262_144), (64, 128_256), (1024, 4097), (3, 513), (70_000, 17)),
    (48, 20_000),
    50_000,
)
"""A GPU's: seconds a test."""

SMALL = Sizes(((2, 17), (1, 1025)), ((1, 1), (3, 513)), (3, 70), 24)
"""The interpreter's, which takes a millisecond for what a GPU does in a nanosecond."""

KERNEL_DEVICES = [
    pytest.param("cpu", marks=pytest.mark.slow),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


@pytest.fixture(params=KERNEL_DEVICES)
def device(request) -> torch.device:
    """Where kernels run."""
    if (request.param == "cuda") != torch.cuda.is_available():
        pytest.skip("Triton compiles where there is a CUDA device, and is interpreted elsewhere")
    return torch.device(request.param)


@pytest.fixture
def sizes(device) -> Sizes:
    return FULL if device.type == "cuda" else SMALL
