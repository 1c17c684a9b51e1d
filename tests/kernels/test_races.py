"""The programs that share a row may run in any order: found by running them at once."""

import random
import sys

import pytest
import torch
import triton
from concurrent_programs import concurrent

from anchored.kernels.gpu import clip, launch, layout
from anchored.kernels.sampler import uniforms

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's programs are watched"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

CPU = torch.device("cpu")


def case(seed, charge):
    """Two rows with bans or NaN, and budgets that bind or do not; arguments of a launch."""
    generator = torch.Generator().manual_seed(seed)
    base = 2.0 * torch.randn(2, 2100, generator=generator)
    safe = (base + torch.randn(2, 2100, generator=generator)).bfloat16()
    risky = (1.2 * base + torch.randn(2, 2100, generator=generator)).bfloat16()
    if seed % 3 == 1:
        risky[..., ::3] = -torch.inf
    if seed % 3 == 2:
        risky[0, 5], safe[1, ::7] = torch.nan, -3e9
    budget = torch.full((2,), (0.0, 0.05, 0.5, 3.0)[seed % 4], dtype=torch.float64)
    numbers = uniforms(torch.tensor([seed, seed + 1]), torch.zeros(2, dtype=torch.int64))
    return (risky, safe), (budget, numbers, None), {"charge": charge}


def launched(arguments, num_splits):
    """The memory after a launch, whatever lay there before."""
    pair, inputs, options = arguments
    memory = launch.workspace(2, 2100, CPU, num_splits)
    memory.facts.fill_(7.5)
    memory.records.fill_(9.125)
    launch.launch(*pair, memory, *inputs, **options)
    return memory


def hazards(arguments, monkeypatch):
    """Races between the three programs of each row; results must be those of one program."""
    random.seed(1)
    expected = launched(arguments, 1)
    with concurrent(monkeypatch) as recorder:
        memory = launched(arguments, 3)
    for name in ("token_ids", "flags"):
        assert torch.equal(getattr(memory, name), getattr(expected, name))
    is_valid = expected.flags[:, layout.IS_VALID.value]
    facts = [workspace.facts[is_valid][:, :6] for workspace in (memory, expected)]
    assert torch.equal(*facts)
    return recorder.hazards()


@pytest.fixture
def quick_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("charge", ["mean", "worst", "drawn"])
def test_programs_of_a_row_do_not_race(seed, charge, monkeypatch, quick_switches):
    assert hazards(case(seed + 1, charge), monkeypatch) == {}


@triton.jit
def same_sums(step):
    """A fault: every step writes where the last one may still be read."""
    return layout.STEP_SUMS + step * 0


def test_a_planted_race_is_found(monkeypatch, quick_switches):
    monkeypatch.setattr(clip, "step_sums", same_sums)
    with concurrent(monkeypatch) as recorder:
        launched(case(3, "worst"), 3)
    assert recorder.hazards()
