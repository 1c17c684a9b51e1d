"""The solver of the torch backend: how often it reads a row, and what its sums and bounds hold."""

import math

import numpy as np
import pytest
import torch

from anchored.kernels import reference
from anchored.kernels.cpu import kl, rows
from anchored.kernels.projection import project_kl

ROUNDING = 1e-12
"""Nats; of the float64 reference."""


def one_group(risky, safe):
    ((_, group),) = rows.row_groups(risky, safe)
    return group


@pytest.mark.parametrize("vocab_size", [1, 63, 65, 4096, 4097, 128_256])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_rows_are_read_token_by_token(vocab_size, dtype, logit_pairs):
    pair = logit_pairs("masked_both", 1, vocab_size, torch.Generator().manual_seed(vocab_size))
    risky, safe = (x.to(dtype).double() for x in pair)
    group = one_group(risky.to(dtype), safe.to(dtype))
    weight = (safe - safe.amax()).exp()
    is_shared = (risky > -math.inf) & (safe > -math.inf)
    flat = {name: getattr(group, name).flatten(1) for name in ("safe", "shared", "tilt")}
    assert not flat["shared"][:, vocab_size:].exp2().any()
    assert not flat["tilt"][:, vocab_size:].any()
    torch.testing.assert_close(flat["safe"][:, :vocab_size].exp2(), weight)
    shared_weight = torch.where(is_shared, weight, 0.0)
    torch.testing.assert_close(flat["shared"][:, :vocab_size].exp2(), shared_weight)
    tilt = torch.where(is_shared, risky - risky.amax() - safe + safe.amax(), 0.0) / math.log(2.0)
    torch.testing.assert_close(flat["tilt"][:, :vocab_size], tilt, rtol=1e-12, atol=1e-9)
    assert group.safe_pieces.sum().item() == pytest.approx(weight.sum().item(), rel=1e-13)
    floor = reference.support_floor(risky, safe).item()
    assert group.floor[0] == pytest.approx(floor, rel=1e-9, abs=1e-12) or floor > 600.0
    assert group.floor[0] >= floor - ROUNDING


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # at beta = 0 the curve has no speed
@pytest.mark.parametrize("kind", ["generic", "memorised", "disjoint_peaks", "two_atoms", "huge"])
def test_every_certified_point_holds_the_true_divergence_within_its_margin(kind, logit_pairs):
    risky, safe = logit_pairs(kind, 40, 300, torch.Generator().manual_seed(4))
    group, beta = one_group(risky, safe), np.linspace(0.0, 1.0, 40)
    curves = kl._Curves(group.shared, group.tilt, group.log2_shared, group.rounding)
    points = kl._certified(curves, beta, np.zeros(40, dtype=bool), group.scratch[0])
    log_probs = reference.tilted_log_probs(risky, safe, torch.from_numpy(beta))
    error = np.abs(points.kl - reference.kl_divergence(log_probs, safe).numpy())
    assert np.isfinite(points.kl).all()
    assert (error <= points.margin + ROUNDING * (1.0 + points.kl)).all()
    assert (points.margin <= 1e-6 * (1.0 + points.kl)).all()


def test_a_divergence_that_vanishes_in_one_sum_alone_is_not_taken_for_zero():
    # Under p_s the only tilted token weighs e^-800, which is 0: but p_r puts all its mass there.
    safe, risky = torch.tensor([[0.0, -800.0]]), torch.tensor([[-800.0, 0.0]])
    projection = project_kl(risky.double(), safe.double(), torch.tensor([5.0]))
    log_probs = reference.tilted_log_probs(risky, safe, projection.weight)
    assert reference.kl_divergence(log_probs, safe) <= projection.spend + ROUNDING
    assert projection.weight < 1.0


@pytest.mark.parametrize(
    ("kind", "mean_limit"),
    [("generic", 2.0), ("memorised", 2.0), ("disjoint_peaks", 2.4), ("two_atoms", 2.6)],
)
def test_few_float64_passes_settle_a_row(kind, mean_limit, logit_pairs, budgets, monkeypatch):
    num_passes = []

    def counted_points(curves, *arguments):
        num_passes[-1] += 1
        return certified(curves, *arguments)

    certified = kl._certified
    monkeypatch.setattr(kl, "_certified", counted_points)
    generator = torch.Generator().manual_seed(3)
    for _ in range(200):
        num_passes.append(0)
        risky, safe = logit_pairs(kind, 1, 1025, generator)
        project_kl(risky, safe, budgets(1, generator))
    assert sum(num_passes) / 200 <= mean_limit
    assert max(num_passes) <= 7


@pytest.fixture
def passes(monkeypatch):
    """The dtype of every pass over rows since."""
    dtypes, moments = [], kl._moments

    def counted_moments(curves, *arguments):
        dtypes.append(curves.bits.dtype)
        return moments(curves, *arguments)

    monkeypatch.setattr(kl, "_moments", counted_moments)
    return dtypes


@pytest.mark.parametrize("budget", [1e-8, 1e-6, 1e-3, 0.5])
def test_a_row_is_read_a_few_times_whatever_its_budget(budget, logit_pairs, passes):
    risky, safe = logit_pairs("generic", 20, 40_000, torch.Generator().manual_seed(5))
    project_kl(risky, safe, torch.full((20,), budget, dtype=torch.float64))
    assert passes.count(torch.float32) / 20 <= 3.0
    # One of them for mean and variance at 0, one for the last step to the aim.
    assert passes.count(torch.float64) / 20 <= 3.5


@pytest.mark.parametrize("kind", ["generic", "memorised"])
def test_narrow_rows_are_solved_without_a_guess_in_a_few_passes(kind, logit_pairs, passes):
    generator = torch.Generator().manual_seed(7)
    for budget in (1e-8, 1e-3, 0.1, 0.5, 5.0):
        for _ in range(20):
            risky, safe = logit_pairs(kind, 1, 257, generator)
            project_kl(risky, safe, torch.tensor([budget], dtype=torch.float64))
    assert set(passes) == {torch.float64}
    assert len(passes) / 100 <= 6.0
