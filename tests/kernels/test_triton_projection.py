"""Triton's projections against float64 and the torch backend, in the interpreter or on a GPU."""

import math

import pytest
import torch
from logit_kinds import KINDS, divergence_of

from anchored.kernels import reference
from anchored.kernels.gpu import launch
from anchored.kernels.projection import project_kl, project_max
from anchored.kernels.sampler import uniforms
from anchored.kernels.spend import SPEND_QUANTUM

# Lanes whose results are discarded divide by zero, and numpy, the interpreter's engine, says so.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

SIZES = [(1, 1), (17, 2), (257, 2), (1025, 1)]
PROJECTS = [project_kl, project_max]

REFERENCE_ERROR = 1e-12
"""Nats; rounding of the float64 reference itself."""


def project_on_device(project, risky, safe, budget, uniform=None):
    """The projection by Triton, where it can run, and its tensors back on the CPU."""
    arguments = [None if x is None else x.to(DEVICE) for x in (risky, safe, budget, uniform)]
    return project(*arguments, backend="triton")


def check_feasible(project, projection, risky, safe, budget):
    """True divergence <= spend <= budget, spends on the grid; returns the divergence."""
    divergence = divergence_of(project, projection, risky.to(DEVICE), safe.to(DEVICE)).cpu()
    spend = projection.spend.cpu()
    assert bool((divergence <= spend + REFERENCE_ERROR).all())
    assert bool((spend <= budget.clamp_min(0.0)).all())
    assert bool((spend / SPEND_QUANTUM).frac().eq(0).all())
    banned = reference.log_softmax(safe) == -math.inf
    assert bool((projection.log_probs().cpu()[banned] == -math.inf).all())
    return divergence


def check_against_torch(project, projection, risky, safe, budget, uniform):
    """The same law as the torch backend's within what both promise, and the same draws."""
    expected = project(risky, safe, budget, uniform, backend="torch")
    assert torch.equal(projection.is_safe_only.cpu(), expected.is_safe_only)
    gap = (projection.spend.cpu() - expected.spend).abs()
    assert bool((gap <= torch.clamp(1e-5 * budget, min=1e-7)).all())
    assert torch.equal(projection.token_ids.cpu(), expected.token_ids)
    assert torch.equal(projection.accepted.cpu(), expected.accepted)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("project", PROJECTS)
@pytest.mark.parametrize("kind", KINDS)
def test_random_cases_keep_the_bound_and_agree_with_torch(kind, project, logit_pairs, budgets):
    generator = torch.Generator().manual_seed(KINDS.index(kind))
    for index, (vocab_size, num_rows) in enumerate(SIZES):
        dtype = (torch.float32, torch.bfloat16, torch.float16)[index % 3]
        risky, safe = logit_pairs(kind, num_rows, vocab_size, generator)
        risky, safe = risky.to(dtype), safe.to(torch.bfloat16 if index == 3 else dtype)
        budget = budgets(num_rows, generator)
        uniform = uniforms(torch.arange(num_rows), torch.arange(num_rows))
        projection = project_on_device(project, risky, safe, budget, uniform)
        divergence = check_feasible(project, projection, risky, safe, budget)
        if kind == "huge":  # beyond +-100 a lower weight is allowed, an overspend is not
            continue
        binds = (projection.weight.cpu() < 1.0) & ~projection.is_safe_only.cpu()
        shortfall = torch.where(binds, budget - divergence, 0.0)
        assert bool((shortfall <= torch.clamp(1e-5 * budget, min=1e-7)).all())
        check_against_torch(project, projection, risky, safe, budget, uniform)


@pytest.mark.parametrize("project", PROJECTS)
def test_what_the_common_support_costs_is_paid_from_the_budget(project, logit_pairs):
    risky, safe = logit_pairs("masked_both", 6, 90, torch.Generator().manual_seed(19))
    floor = reference.support_floor(risky, safe)
    is_payable = floor < 5.0
    risky, safe, budget = risky[is_payable], safe[is_payable], floor[is_payable] + 0.05
    projection = project_on_device(project, risky, safe, budget)
    divergence = check_feasible(project, projection, risky, safe, budget)
    assert not projection.is_safe_only.any()
    assert bool((projection.weight < 1.0).any())
    shortfall = torch.where(projection.weight.cpu() < 1.0, budget - divergence, 0.0)
    assert bool((shortfall <= torch.clamp(1e-5 * budget, min=1e-7)).all())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("project", PROJECTS)
def test_a_batch_is_its_rows_one_by_one_bit_for_bit(project, logit_pairs, budgets):
    generator = torch.Generator().manual_seed(22)
    risky, safe = logit_pairs("generic", 4, 70, generator)
    budget, uniform = budgets(4, generator), uniforms(torch.arange(4), torch.arange(4))
    whole = project_on_device(project, risky, safe, budget, uniform)
    for row in range(4):
        one = slice(row, row + 1)
        alone = project_on_device(project, risky[one], safe[one], budget[one], uniform[one])
        for name in ("weight", "spend", "token_ids", "accepted"):
            assert torch.equal(getattr(alone, name), getattr(whole, name)[one])


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("project", PROJECTS)
def test_keys_and_positions_draw_as_their_uniforms_do(project, backend, logit_pairs):
    risky, safe = logit_pairs("generic", 3, 90, torch.Generator().manual_seed(23))
    keys, positions = torch.tensor([5, -(2**62), 9]), torch.tensor([0, 7, 2**40])
    budget = torch.full((3,), 0.2, dtype=torch.float64)
    rows = [x.to(DEVICE) for x in (risky, safe, budget)]
    keyed = project(*rows, keyed=(keys.to(DEVICE), positions.to(DEVICE)), backend=backend)
    given = project(*rows, uniforms(keys, positions).to(DEVICE), backend=backend)
    for name in ("token_ids", "accepted", "spend"):
        assert torch.equal(getattr(keyed, name), getattr(given, name))


def test_a_vocabulary_beyond_the_bound_on_rounding_is_refused():
    with pytest.raises(ValueError, match="vocab_size must be at most 262144, got 262145"):
        launch.workspace(1, 2**18 + 1, DEVICE, 1)
