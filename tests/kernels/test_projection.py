"""Both projections against float64: the bound in every case, accuracy where it is promised.

The same of Triton's: tests/gpu/test_kernels.py, in the interpreter where there is no GPU.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logit_kinds import (
    DEVICE,
    FEW_SIZES,
    KINDS,
    SIZES,
    project_drawn,
    random_budgets,
    random_logits,
    star_log_probs,
)

from anchored.kernels import reference
from anchored.kernels.cpu import kl
from anchored.kernels.cpu.rows import PIECE_SIZE, row_groups
from anchored.kernels.project import project_kl, project_max
from anchored.kernels.sampler import uniforms
from anchored.kernels.spend import SPEND_QUANTUM

LOGITS = "risky_logits", "safe_logits"
FIGURES = "weight", "spend", "offset", "ceiling", "log2_safe_mass", "token_ids", "accepted"

both_backends = pytest.mark.parametrize("backend", ["torch", "triton"])
both_projections = pytest.mark.parametrize("project", [project_kl, project_max])
all_projections = pytest.mark.parametrize("project", [project_kl, project_max, project_drawn])
# Lanes whose results are discarded divide by zero, and numpy, the interpreter's engine, says so.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

REFERENCE_ERROR = 1e-11
"""Nats; rounding of the float64 log-probabilities compared, 1e-16 times the range of the logits."""


SUM_ERROR = 1e-12
"""Nats; of divergences in float64."""


def project_on(project, risky, safe, budget, uniform=None, *, backend, **options):
    """By one backend, on a GPU where there is one."""
    arguments = [None if x is None else x.to(DEVICE) for x in (risky, safe, budget, uniform)]
    return project(*arguments, backend=backend, **options)


def exact_log_probs(project, projection, risky, safe, budget):
    """(B, V) float64 log p*: of KL by the definition at the weight returned, of the other from the
    same values in float64, which are the same distribution."""
    if project is project_max:
        return project_max(risky.double(), safe.double(), budget).log_probs()
    return star_log_probs(projection, risky, safe)


def assert_feasible(project, projection, log_probs, safe, budget):
    """float64 divergence of the distribution returned <= spend <= budget; returns it."""
    distance = reference.kl_divergence if project is project_kl else reference.max_divergence
    divergence = torch.where(projection.is_safe_only, 0.0, distance(log_probs, safe))
    assert bool((divergence <= projection.spend + REFERENCE_ERROR).all())
    assert bool((projection.spend <= budget.clamp_min(0.0)).all())
    assert bool((projection.spend / SPEND_QUANTUM).frac().eq(0).all())
    banned = reference.log_softmax(safe) == -math.inf
    assert bool((projection.log_probs()[banned] == -math.inf).all())
    assert log_probs.logsumexp(-1).abs().max() < 1e-9
    return divergence


def assert_accurate(projection, divergence, log_probs, budget):
    """The promises for logits within +-100."""
    binds = (projection.weight < 1.0) & ~projection.is_safe_only
    shortfall = torch.where(binds, budget - divergence, 0.0)
    assert bool((shortfall <= torch.clamp(1e-5 * budget, min=1e-7)).all())
    is_likely = log_probs > math.log(1e-8)
    error = (projection.log_probs().double() - log_probs)[is_likely].abs()
    assert error.max() <= 1e-5


@both_projections
@pytest.mark.parametrize("sizes", [FEW_SIZES, pytest.param(SIZES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_random_cases_keep_the_bound_and_the_accuracy(kind, sizes, project):
    generator = torch.Generator().manual_seed(KINDS.index(kind))
    for vocab_size, num_rows in sizes:
        for dtype in (torch.bfloat16, torch.float32):
            risky, safe = (
                x.to(dtype) for x in random_logits(kind, num_rows, vocab_size, generator)
            )
            budget = random_budgets(num_rows, generator)
            projection = project(risky, safe, budget)
            log_probs = exact_log_probs(project, projection, risky, safe, budget)
            divergence = assert_feasible(project, projection, log_probs, safe, budget)
            if kind != "huge":
                assert_accurate(projection, divergence, log_probs, budget)


@both_backends
@all_projections
def test_keys_and_positions_draw_as_their_uniforms_do(project, backend):
    risky, safe = random_logits("generic", 3, 90, torch.Generator().manual_seed(23))
    keys, positions = torch.tensor([5, -(2**62), 9]), torch.tensor([0, 7, 2**40])
    rows = risky, safe, torch.full((3,), 0.2, dtype=torch.float64)
    numbers, keyed = uniforms(keys, positions), (keys.to(DEVICE), positions.to(DEVICE))
    expected = project_on(project, *rows, numbers, backend=backend)
    drawn = project_on(project, *rows, keyed=keyed, backend=backend)
    for name in ("token_ids", "accepted", "spend"):
        assert torch.equal(getattr(drawn, name), getattr(expected, name))


@both_backends
def test_support_rules(backend):
    inf = math.inf
    safe = torch.tensor([[0.0, 0.0, -inf]] * 5, dtype=torch.float64)
    risky = torch.tensor(
        [[-inf, 0.0, 9.0], [-inf, 0.0, 9.0], [-inf, -inf, 0.0], [0.0, 0.0, 9.0], [1.0, 0.0, 9.0]],
        dtype=torch.float64,
    )
    budget = torch.tensor([0.69, 0.70, 5.0, 5.0, 0.0], dtype=torch.float64)
    projection = project_on(project_kl, risky, safe, budget, backend=backend)
    # Rows: floor log 2 above the budget, below it, empty S, p_r on S is p_s, no budget.
    assert projection.is_safe_only.tolist() == [True, False, True, False, True]
    assert projection.weight.tolist() == [0.0, 1.0, 0.0, 1.0, 0.0]
    half = [0.5, 0.5, 0.0]
    expected = torch.tensor([half, [0.0, 1.0, 0.0], half, half, half], dtype=torch.float64)
    torch.testing.assert_close(projection.log_probs().exp().cpu(), expected)
    assert projection.spend[[0, 2, 4]].tolist() == [0.0] * 3
    assert projection.spend[3] <= SPEND_QUANTUM
    assert math.log(2.0) <= projection.spend[1] <= math.log(2.0) + 2 * SPEND_QUANTUM


@both_backends
@all_projections
def test_identical_models_give_the_risky_distribution_for_nothing(project, backend):
    _, safe = random_logits("masked_safe", 3, 1100, torch.Generator().manual_seed(2))
    rows = torch.full((3,), 0.1).double(), uniforms(torch.arange(3), torch.arange(3))
    projection = project_on(project, safe, safe, *rows, backend=backend)
    torch.testing.assert_close(projection.weight, torch.ones_like(projection.weight))
    assert projection.spend.tolist() == [0.0] * 3
    assert not projection.is_safe_only.any()


@both_backends
@all_projections
def test_invalid_rows_are_flagged_and_leave_the_others_alone(project, backend):
    risky, safe = random_logits("generic", 5, 40, torch.Generator().manual_seed(3))
    clean = risky.clone(), safe.clone()
    risky[0, 7], safe[1, 3], risky[2], safe[3, 0] = math.nan, math.inf, -math.inf, math.nan
    budget = torch.full((5,), 3.0).double()
    uniform = uniforms(torch.arange(5), torch.zeros(5, dtype=torch.int64))
    projection = project_on(project, risky, safe, budget, uniform, backend=backend)
    last = clean[0][4:], clean[1][4:], budget[4:], uniform[4:]
    alone = project_on(project, *last, backend=backend)
    assert projection.is_valid.tolist() == [False] * 4 + [True]
    assert projection.token_ids[:4].tolist() == [-1] * 4
    assert projection.spend[:4].tolist() == [0.0] * 4 == projection.weight[:4].tolist()
    assert not projection.accepted[:4].any()
    assert projection.log_probs()[:4].isnan().all()
    assert projection.spend[4] == alone.spend[0]
    assert projection.token_ids[4] == alone.token_ids[0]


@all_projections
@pytest.mark.parametrize("vocab_size", [257, PIECE_SIZE + 100, 40_000])
def test_a_row_has_the_same_digits_alone_and_with_any_others(vocab_size, project):
    generator = torch.Generator().manual_seed(6)
    risky, safe = random_logits("generic", 12, vocab_size, generator)
    # As they are; with bans; of a wide range; far apart; huge; a constant apart; not valid.
    risky[1, ::3], safe[2, 0] = -math.inf, -90.0
    risky[3] += 50.0
    risky[4], safe[4] = 1e4 * risky[4], 1e4 * safe[4]
    risky[5] = safe[5] - 1.0
    risky[6, 3] = math.nan
    budget = torch.full((12,), 0.02, dtype=torch.float64)
    budget[1] += reference.support_floor(risky, safe)[1]
    uniform = uniforms(torch.arange(12), torch.arange(12))
    batch = project(risky, safe, budget, uniform)
    for row in range(12):
        one = slice(row, row + 1)
        alone = project(risky[one], safe[one], budget[one], uniform[one])
        for name in FIGURES:
            assert torch.equal(getattr(alone, name), getattr(batch, name)[one])


@all_projections
def test_a_row_has_the_same_digits_on_any_number_of_threads(project):
    generator = torch.Generator().manual_seed(6)
    num_rows, vocab_size, num_threads = 7, 36_288, 5
    budget, uniform = torch.full((num_rows,), 0.1), uniforms(torch.arange(7), torch.arange(7))
    before, share = torch.get_num_threads(), -(-num_rows * vocab_size // 5)
    for _ in range(12):
        # Nearly all weight is where the fifths of the rows meet, which threads would share.
        risky, safe = torch.randn(2, num_rows, vocab_size, generator=generator).sub(60.0)
        for border in range(share, num_rows * vocab_size, share):
            for logits in (risky, safe):
                logits.view(-1)[border - 4 : border] += 60.0
        alone = project(risky, safe, budget, uniform)
        try:
            torch.set_num_threads(num_threads)
            shared = project(risky, safe, budget, uniform)
            assert torch.get_num_threads() == num_threads
        finally:
            torch.set_num_threads(before)
        for name in FIGURES:
            assert torch.equal(getattr(alone, name), getattr(shared, name)), name


@both_backends
def test_strided_logits_are_read_in_place(backend):
    risky, safe = random_logits("generic", 4, 80, torch.Generator().manual_seed(5))
    budget = torch.full((2,), 0.3).double()

    def spends(risky, safe):
        return project_on(project_kl, risky, safe, budget, backend=backend).spend

    expected = spends(risky[::2, ::2].contiguous(), safe[::2, 1::2].contiguous())
    assert torch.equal(spends(risky[::2, ::2], safe[::2, 1::2]), expected)
    assert torch.equal(spends(risky.T.contiguous().T[:2], safe[:2]), spends(risky[:2], safe[:2]))


@both_projections
@given(
    kind=st.sampled_from(KINDS),
    vocab_size=st.sampled_from([1, 2, 7, 63, 64, 65, 300]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=40)
def test_a_projection_moves_with_its_budget_and_with_nothing_else(project, kind, vocab_size, seed):
    generator = torch.Generator().manual_seed(seed)
    risky, safe = random_logits(kind, 6, vocab_size, generator)
    budget = random_budgets(6, generator)
    projection = project(risky, safe, budget)
    assert projection.log_probs().logsumexp(-1).abs().max() < 1e-9
    more = project(risky, safe, 2.0 * budget + 1e-3)
    if kind != "huge" or project is project_max:
        assert bool((more.weight >= projection.weight - 1e-9).all())
    if kind == "huge":
        return
    order = torch.randperm(vocab_size, generator=generator)
    permuted = project(risky[:, order], safe[:, order], budget)
    shifted = project(risky + 3.0, safe - 5.0, budget)
    is_kl = project is project_kl
    tolerance = torch.clamp(2e-5 * budget, min=2e-7) if is_kl else torch.full_like(budget, 1e-8)
    for other in (permuted, shifted):
        assert bool(((other.spend - projection.spend).abs() <= tolerance).all())


@pytest.mark.parametrize("kind", ["generic", "memorized", "disjoint_peaks", "two_atoms", "huge"])
def test_every_certified_point_holds_the_true_divergence_within_its_margin(kind):
    risky, safe = random_logits(kind, 40, 300, torch.Generator().manual_seed(4))
    ((_, group),) = row_groups(risky, safe)
    beta = np.linspace(0.0, 1.0, 40)
    points = kl.certified(kl.read_curves(group, np.arange(40)), beta, group.scratch[0])
    log_probs = reference.tilted_log_probs(risky, safe, torch.from_numpy(beta))
    true = reference.kl_divergence(log_probs, safe)
    error = np.abs(points.nats - true.numpy())
    assert np.isfinite(points.nats).all()
    assert (error <= points.margin + SUM_ERROR * (1.0 + points.nats)).all()
    assert (points.margin <= 1e-6 * (1.0 + points.nats)).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"risky_logits": torch.zeros(2, 4)}, r"both be \(B, V\), got \(2, 4\) and \(2, 5\)"),
        ({"risky_logits": torch.zeros(2, 5).long()}, "float dtype, got torch.int64"),
        (dict.fromkeys(LOGITS, torch.zeros(2, 0)), "at least 1 token, got 0"),
        (
            {**dict.fromkeys(LOGITS, torch.zeros(2, 2**18 + 1)), "backend": "triton"},
            "vocab_size must be at most 262144, got 262145",
        ),
        ({"budget": torch.tensor([1.0, math.nan])}, "budget must not be NaN"),
        ({"budget": torch.ones(3), "backend": "triton"}, r"budget must be \(2,\)"),
        ({"budget": torch.ones(2).long()}, "budget must have a float dtype"),
        ({"uniform": torch.zeros(2, 3)}, r"uniform must be \(2, 3\) float64"),
        ({"uniform": torch.ones(2, 3).double()}, r"uniform must be in \[0, 1\)"),
        ({"backend": "cuda"}, "backend must be one of auto, torch, triton, got 'cuda'"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    arguments = {**dict.fromkeys(LOGITS, torch.zeros(2, 5)), "budget": torch.ones(2)}
    with pytest.raises(ValueError, match=message):
        project_kl(**(arguments | change))
