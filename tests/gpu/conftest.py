"""Devices of these tests: a GPU (`make test-gpu`).

Kernels run on the CPU under Triton's interpreter where there is none, at small sizes: the code of a
test is the same. Pairs decode on a GPU alone.
"""

from dataclasses import dataclass

import pytest
import torch

NO_GPU = "there is no CUDA device here"
COMPILED = "Triton compiles here: its interpreter runs where there is no GPU"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """How large the inputs of the tests are."""

    shapes: tuple[tuple[int, int], ...]
    """Rows and tokens of logits."""
    extreme_shapes: tuple[tuple[int, int], ...]
    batch_shape: tuple[int, int]
    """Rows that are alone and together."""
    num_draws: int
    """From one distribution of 257 tokens."""
    pair_shapes: tuple[str, str]
    """Models of the pairs that decode, see tools/bench/inputs.py."""
    vocab_size: int
    prompt_lengths: tuple[int, ...]
    """Unlike, and more than rows, so that requests join and leave."""
    num_new_tokens: int
    num_drafts: int
    byte_text: bytes
    num_counted: int
    """Tokens or bytes over which waits are counted."""
    most_waits: int
    """Of the host for a token."""


FULL = Sizes(
    shapes=((64, 1), (64, 17), (256, 257), (32, 1025), (16, 32_000), (4, 128_256)),
    extreme_shapes=(
        *((1, 1), (1024, 257), (1, 262_144), (64, 128_256), (1024, 4097), (3, 513)),
        (70_000, 17),
    ),
    batch_shape=(48, 20_000),
    num_draws=50_000,
    pair_shapes=("tiny", "small"),
    vocab_size=2048,
    prompt_lengths=(3, 17, 40) * 3,
    num_new_tokens=12,
    num_drafts=3,
    byte_text=b"It's the keeper's  lamp, 1234\n\nof caf\xc3\xa9s",
    num_counted=16,
    most_waits=2,
)
"""A GPU's: seconds a test."""

SMALL = Sizes(
    shapes=((2, 17), (1, 1025)),
    extreme_shapes=((1, 1), (3, 513)),
    batch_shape=(3, 70),
    num_draws=24,
    pair_shapes=("tiny", "tiny"),
    vocab_size=40,
    prompt_lengths=(3, 5, 4),
    num_new_tokens=3,
    num_drafts=1,
    byte_text=b"It's",
    num_counted=3,
    most_waits=1,
)
"""The interpreter's, which takes a millisecond for what a GPU does in a nanosecond."""

ON_GPU = pytest.param("cuda", marks=pytest.mark.gpu)


# tests/kernels runs the same checks under the interpreter in less time.
@pytest.fixture(params=[pytest.param("interpreter", marks=pytest.mark.slow), ON_GPU])
def device(request) -> torch.device:
    """Where kernels run."""
    _skip_unless_there(request.param)
    return torch.device("cuda" if request.param == "cuda" else "cpu")


@pytest.fixture(params=[ON_GPU])
def decoding_device(request) -> torch.device:
    """Where pairs decode."""
    _skip_unless_there(request.param)
    return torch.device("cuda", 0)


@pytest.fixture
def sizes(request) -> Sizes:
    return FULL if "cuda" in request.node.callspec.params.values() else SMALL


def _skip_unless_there(name: str) -> None:
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip(NO_GPU)
    if name != "cuda" and torch.cuda.is_available():
        pytest.skip(COMPILED)
