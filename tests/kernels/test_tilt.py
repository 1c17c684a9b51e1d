"""The passes over the vocabulary, and how many of them the search takes."""

import collections
import math

import numpy as np
import pytest
import torch

from anchored.kernels import reference, search
from anchored.kernels.bracket import Bracket, narrowed, narrowed_by_estimates, predicted_beta
from anchored.kernels.logit_pair import logit_pair
from anchored.kernels.projection import project_kl
from anchored.kernels.row_group import BITS_PER_NAT, PIECE_SIZE
from anchored.kernels.small_vocab import SMALL_VOCAB
from anchored.kernels.support import support_masses
from anchored.kernels.tilt import ESTIMATED_BETAS, statistics, tilted_sums
from anchored.kernels.tilt_points import (
    LOG_PARTITION_ERROR,
    UNKNOWN_POINT,
    TiltPoint,
    certified_point,
    estimated_point,
    settled_point,
    start_point,
    tilt_moments,
)

SEVERAL_READS = 10 * PIECE_SIZE - 900
"""A row of two reads, the last of them narrower and ending inside a piece."""

SIZES = [1, 63, 65, PIECE_SIZE, PIECE_SIZE + 1, 3 * PIECE_SIZE + 17, SEVERAL_READS]


def plain_sums(risky, safe, beta, *, has_shift):
    """(B, 4) float64: sums of p_s^(1-beta) p_r^beta d**n, d in nats.

    has_shift: the heaviest token of either law weighs 1; otherwise a token weighs exp(logit).
    """
    risky, safe = risky.double(), safe.double()
    if has_shift:
        risky, safe = (x - x.amax(-1, keepdim=True) for x in (risky, safe))
    tilt = risky - safe
    weight = ((1.0 - beta) * safe + beta * risky).exp()
    return torch.stack([(weight * tilt**power).sum(-1) for power in range(4)], dim=-1)


@pytest.mark.parametrize("vocab_size", SIZES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_sums_agree_with_a_plain_sum(vocab_size, dtype, logit_pairs):
    generator = torch.Generator().manual_seed(vocab_size)
    risky, safe = (x.to(dtype) for x in logit_pairs("generic", 3, vocab_size, generator))
    pair, rows = logit_pair(risky, safe), torch.tensor([2, 0])
    beta = np.array([[0.0, 0.37, 1.0]] * 2)
    exact = torch.from_numpy(tilted_sums(pair, rows, beta).sums)
    estimated = torch.from_numpy(statistics(pair, rows)[1].sums)
    is_plain = vocab_size > PIECE_SIZE
    for point in range(3):
        expected = plain_sums(risky[rows], safe[rows], beta[0, point], has_shift=not is_plain)
        torch.testing.assert_close(exact[:, point], expected, rtol=1e-11, atol=1e-9)
    for point, weight in enumerate(ESTIMATED_BETAS):
        expected = plain_sums(risky[rows], safe[rows], weight, has_shift=True)
        torch.testing.assert_close(estimated[:, point], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["generic", "memorised", "masked_both", "disjoint_peaks"])
def test_estimates_lie_within_their_margin(kind, logit_pairs):
    logits = logit_pairs(kind, 20, 9000, torch.Generator().manual_seed(1))
    risky, safe = logits
    _, sums = statistics(logit_pair(risky, safe), torch.arange(20))
    floor = reference.support_floor(risky, safe)
    num_known = 0
    for place, weight in enumerate(ESTIMATED_BETAS):
        log_probs = reference.tilted_log_probs(risky, safe, torch.full((20,), weight))
        kl = reference.kl_divergence(log_probs, safe) - floor
        for row, its_sums in enumerate(sums.sums):
            at_0, here = (tilt_moments(weight, its_sums[x].tolist()) for x in (0, place))
            point = estimated_point(here, at_0.log2_partition)
            if math.isfinite(point.kl):
                num_known += 1
                assert abs(point.kl - kl[row]) <= point.margin
    assert num_known > 30


@pytest.mark.parametrize("kind", ["generic", "masked_both"])
@pytest.mark.parametrize("vocab_size", [2 * PIECE_SIZE + 100, SEVERAL_READS])
def test_masses_are_those_of_the_safe_model(kind, vocab_size, logit_pairs):
    risky, safe = logit_pairs(kind, 4, vocab_size, torch.Generator().manual_seed(2))
    pair = logit_pair(risky, safe)
    masses = support_masses(pair, torch.arange(4))
    weight = (safe - pair.safe_peak).exp()
    shared = weight.masked_fill(risky == -torch.inf, 0.0).sum(-1)
    torch.testing.assert_close(masses.pieces.sum(-1), weight.sum(-1))
    for piece, share in enumerate(weight.split(PIECE_SIZE, 1)):
        torch.testing.assert_close(masses.pieces[:, piece], share.sum(-1))
    torch.testing.assert_close(masses.shared, shared)
    torch.testing.assert_close(masses.banned, weight.sum(-1) - shared)


@pytest.mark.parametrize("kind", ["generic", "memorised", "masked_both", "two_atoms"])
def test_points_settled_by_expansion_lie_within_their_margin(kind, logit_pairs):
    risky, safe = logit_pairs(kind, 40, 500, torch.Generator().manual_seed(4))
    pair, rows = logit_pair(risky, safe), torch.arange(40)
    log2_shared = support_masses(pair, rows).shared.log2().tolist()
    tilt_range = pair.tilt_range.tolist()

    def measured(row, beta):
        sums = tilted_sums(pair, rows[row : row + 1], np.array([[beta]])).sums[0, 0]
        moments = tilt_moments(beta, sums.tolist())
        args = (pair.rounding, moments, log2_shared[row])
        return certified_point(*args, is_untilted=False), moments

    starts = [measured(row, beta) for row, beta in enumerate(np.linspace(0.1, 0.9, 40).tolist())]
    num_known = []
    for change in (1e-5, 1e-4, 1e-3, 1e-1):
        num_known.append(0)
        for row, (start, moments) in enumerate(starts):
            aim = start.kl * (1.0 + change)
            settled = settled_point(start, moments, tilt_range[row], aim)
            if settled is None:
                continue
            num_known[-1] += 1
            exact, _ = measured(row, settled.beta)
            assert abs(settled.kl - exact.kl) - exact.margin <= settled.margin
            assert abs(settled.kl - aim) <= 1e-5 * aim
            gap = abs(settled.log2_partition - exact.log2_partition)
            assert gap <= 2.0 * LOG_PARTITION_ERROR * BITS_PER_NAT
    # The longer the step, the fewer are known; the margin alone would not show what went wrong.
    assert num_known[0] >= 10 and num_known == sorted(num_known, reverse=True)
    assert num_known[-1] == 0


LOST = [0.0, 0.0, 0.0, 0.0]
CONSTANT = [2.0, 6.0, 18.0, 54.0]
OVERFLOWING = [1.0, math.inf, math.inf, math.nan]
NO_NUMBERS = [1.0, math.nan, math.nan, math.nan]


@pytest.mark.parametrize("sums", [LOST, OVERFLOWING, NO_NUMBERS])
def test_a_point_whose_sums_are_no_measurement_is_not_known(sums):
    moments = tilt_moments(0.5, sums)
    point = certified_point(1e-15, moments, 0.0, is_untilted=False)
    assert point.kl == point.margin == math.inf and point.beta == 0.5
    assert estimated_point(moments, 0.0).kl == math.inf
    assert settled_point(point, moments, 10.0, 0.1) is None


def test_a_tilt_that_does_not_vary_has_no_curve():
    moments = tilt_moments(0.0, CONSTANT)
    assert moments.variance == moments.skew == 0.0
    start = start_point(moments, 1.0)
    assert start.kl == 0.0 and math.isnan(start.velocity) and math.isnan(start.acceleration)
    # Halfway to a beta beyond 1 lies 1, which settles it.
    assert predicted_beta(Bracket(start, UNKNOWN_POINT), 0.1) == (1.0, 1.0)


def points_at(*curve):
    """Points of KL = beta squared, so that beta is sqrt(KL), a straight line."""
    return [TiltPoint(beta, 0.0, beta * beta, 1e-9, 1.0, 0.0) for beta in curve]


def test_a_bracket_keeps_the_nearest_points():
    low, high = points_at(0.1, 0.9)
    bracket = narrowed(Bracket(low, high), points_at(0.2, 0.4, 0.6, 0.8), 0.25)
    assert (bracket.lower.beta, bracket.upper.beta) == (0.4, 0.6)
    beta, error = predicted_beta(bracket, 0.25)
    assert abs(beta - 0.5) < 1e-12 and error < 1e-12


def test_a_bracket_is_closed_by_a_feasible_point_above_one_that_is_not():
    low, high = points_at(0.1, 0.9)
    bracket = narrowed(Bracket(low, high), points_at(0.95), 1.0)
    assert bracket.lower.beta == 0.95 and bracket.width == 0.0


def test_estimates_outside_the_bracket_or_at_the_aim_are_left_out():
    low, high = points_at(0.2, 0.8)
    unknown, misleading = UNKNOWN_POINT._replace(beta=0.6), low._replace(beta=0.9)
    estimates = [*points_at(0.1, 0.5), unknown, misleading]
    guide = narrowed_by_estimates(Bracket(low, high), estimates, 0.25)
    assert guide == Bracket(low, high)
    guide = narrowed_by_estimates(Bracket(low, high), points_at(0.4, 0.7), 0.25)
    assert (guide.lower.beta, guide.upper.beta) == (0.4, 0.7)


@pytest.mark.parametrize(
    ("kind", "mean_limit", "limit"),
    [
        ("generic", 1.15, 3),
        ("memorised", 1.8, 4),
        ("disjoint_peaks", 3.0, 7),
        ("two_atoms", 6.0, 9),
    ],
)
def test_few_passes_settle_a_row(kind, mean_limit, limit, logit_pairs, budgets, monkeypatch):
    passes = collections.Counter()

    def counted_sums(pair, rows, beta):
        passes.update(rows.tolist())
        return tilted_sums(pair, rows, beta)

    monkeypatch.setattr(search, "tilted_sums", counted_sums)
    generator = torch.Generator().manual_seed(3)
    risky, safe = logit_pairs(kind, 200, SMALL_VOCAB + 1, generator)
    project_kl(risky, safe, budgets(200, generator))
    assert max(passes.values()) <= limit
    assert sum(passes.values()) / 200 <= mean_limit
