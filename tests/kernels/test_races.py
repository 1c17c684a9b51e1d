"""The programs that share a request may run in any order: found by running them at once."""

import random
import sys

import pytest
import torch
import triton
from concurrent_programs import concurrent

from anchored.kernels.gpu import launch, layout, solver
from anchored.kernels.spend import new_accounts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's programs are watched"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

CPU = torch.device("cpu")


def walked(case, memory):
    """One walk of a case's logits; returns the account it ends with."""
    risky, safe, inputs, constants = case
    account = inputs["account_ptr"].clone()
    launch.launch(risky, safe, memory, inputs | {"account_ptr": account}, constants)
    return account


def case(seed, *, is_max, num_rows):
    """Logits with bans, an invalid row, drafts that are right, and budgets that bind or do not."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, num_rows, 2100)
    base = 2.0 * torch.randn(shape, generator=generator)
    safe = (base + torch.randn(shape, generator=generator)).bfloat16()
    risky = (1.2 * base + torch.randn(shape, generator=generator)).bfloat16()
    if seed % 3 == 1:
        risky[..., ::3] = -torch.inf
    if seed % 3 == 2:
        risky[0, -1, 5], safe[1, 0, ::7] = torch.nan, -3e9
    per_step = (0.0, 0.05, 0.5, 3.0)[seed % 4]
    account = new_accounts([per_step] * 2, [4 * per_step] * 2, [0.01] * 2, "adaptive", CPU)
    inputs = {
        "budget_ptr": None,
        "account_ptr": account,
        "uniform_ptr": None,
        "seeds_ptr": torch.tensor([seed, seed + 1]),
        "drafts_ptr": torch.full((2, num_rows - 1), -1),
    }
    found = (risky, safe, inputs, {"HAS_DRAW": True, "IS_MAX": is_max})
    for position in range(num_rows - 1):  # drafts are what is drawn, as far as it is known
        memory = launch.workspace(2, num_rows, 2100, CPU, 1)
        walked(found, memory)
        inputs["drafts_ptr"][:, position] = memory.token_ids[:, position]
    return found


def hazards(found, num_rows, monkeypatch):
    """Races between the three programs of each request; results must be those of one program."""
    random.seed(1)
    memories = [launch.workspace(2, num_rows, 2100, CPU, splits) for splits in (1, 3)]
    for memory in memories:
        memory.facts.fill_(7.5)
        memory.records.fill_(9.125)
    expected = walked(found, memories[0])
    with concurrent(monkeypatch) as recorder:
        account = walked(found, memories[1])
    reached = memories[0].flags[..., layout.WAS_REACHED.value]
    for name in ("token_ids", "flags"):
        assert torch.equal(*(getattr(memory, name)[reached] for memory in memories))
    facts = [memory.facts[reached][:, :5].nan_to_num(5.0) for memory in memories]
    assert torch.equal(*facts) and torch.equal(account, expected)
    return recorder.hazards()


@pytest.fixture
def quick_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("is_max", "num_rows"), [(False, 1), (False, 2), (True, 2)])
def test_programs_of_a_request_do_not_race(seed, is_max, num_rows, monkeypatch, quick_switches):
    found = case(seed + 1, is_max=is_max, num_rows=num_rows)
    assert hazards(found, num_rows, monkeypatch) == {}


@triton.jit
def same_sums(step):
    """A fault: every step writes where the last one may still be read."""
    return layout.STEP_SUMS + step * 0


def test_a_planted_race_is_found(monkeypatch, quick_switches):
    monkeypatch.setattr(solver, "step_sums", same_sums)
    found = case(2, is_max=True, num_rows=1)
    with concurrent(monkeypatch) as recorder:
        walked(found, launch.workspace(2, 1, 2100, CPU, 3))
    assert recorder.hazards()
