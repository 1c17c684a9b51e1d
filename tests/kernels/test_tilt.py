"""The passes over the vocabulary, and how many of them the search takes."""

import collections

import numpy as np
import pytest
import torch

from anchored.kernels import reference, search
from anchored.kernels.logit_pair import logit_pair
from anchored.kernels.projection import project_kl
from anchored.kernels.row_group import BITS_PER_NAT, PIECE_SIZE
from anchored.kernels.small_vocab import SMALL_VOCAB
from anchored.kernels.support import support_masses
from anchored.kernels.tilt import ESTIMATED_BETAS, statistics, tilted_sums
from anchored.kernels.tilt_points import (
    LOG_PARTITION_ERROR,
    certified_points,
    estimated_points,
    settled_points,
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


@np.errstate(all="ignore")
@pytest.mark.parametrize("kind", ["generic", "memorised", "masked_both", "disjoint_peaks"])
def test_estimates_lie_within_their_margin(kind, logit_pairs):
    risky, safe = logit_pairs(kind, 20, 9000, torch.Generator().manual_seed(1))
    _, sums = statistics(logit_pair(risky, safe), torch.arange(20))
    points = estimated_points(tilt_moments(sums))
    floor = reference.support_floor(risky, safe)
    values = torch.from_numpy(points.values)
    for point, weight in enumerate(ESTIMATED_BETAS):
        log_probs = reference.tilted_log_probs(risky, safe, torch.full((20,), weight))
        kl = reference.kl_divergence(log_probs, safe) - floor
        known = values[2, :, point].isfinite()
        error = (values[2, :, point] - kl).abs()
        assert bool((error <= values[3, :, point])[known].all())
    assert known.double().mean() > 0.5


@pytest.mark.parametrize("kind", ["generic", "masked_both"])
@pytest.mark.parametrize("vocab_size", [2 * PIECE_SIZE + 100, SEVERAL_READS])
def test_masses_are_those_of_the_safe_model(kind, vocab_size, logit_pairs):
    risky, safe = logit_pairs(kind, 4, vocab_size, torch.Generator().manual_seed(2))
    pair = logit_pair(risky, safe)
    masses = support_masses(pair, torch.arange(4))
    weight = (safe + pair.safe_shift / BITS_PER_NAT).exp()
    shared = weight.masked_fill(risky == -torch.inf, 0.0).sum(-1)
    torch.testing.assert_close(masses.pieces.sum(-1), weight.sum(-1))
    for piece, share in enumerate(weight.split(PIECE_SIZE, 1)):
        torch.testing.assert_close(masses.pieces[:, piece], share.sum(-1))
    torch.testing.assert_close(masses.shared, shared)
    torch.testing.assert_close(masses.banned, weight.sum(-1) - shared)


@np.errstate(all="ignore")
@pytest.mark.parametrize("kind", ["generic", "memorised", "masked_both", "two_atoms"])
def test_points_settled_by_expansion_lie_within_their_margin(kind, logit_pairs):
    risky, safe = logit_pairs(kind, 40, 500, torch.Generator().manual_seed(4))
    pair, rows = logit_pair(risky, safe), torch.arange(40)
    log2_shared = support_masses(pair, rows).shared.log2().numpy()
    rounding, tilt_range = pair.rounding(rows).numpy(), pair.tilt_range.numpy()
    is_untilted = np.zeros(40, dtype=np.bool_)

    def measured(beta):
        moments = tilt_moments(tilted_sums(pair, rows, beta))
        return certified_points(rounding, moments, log2_shared, is_untilted), moments

    start, moments = measured(np.linspace(0.1, 0.9, 40)[:, None])
    num_known = []
    for change in (1e-5, 1e-4, 1e-3, 1e-1):
        aim = start.kl[:, 0] * (1.0 + change)
        settled = settled_points(start, moments, tilt_range, aim)
        known = np.isfinite(settled.kl[:, 0])
        exact, _ = measured(np.minimum(settled.beta, 1.0))
        error = np.abs(settled.kl - exact.kl) - exact.margin
        assert bool((error <= settled.margin)[known].all())
        assert bool((np.abs(settled.kl[:, 0] - aim) <= 1e-5 * aim)[known].all())
        gap = np.abs(settled.log2_partition - exact.log2_partition)
        assert bool((gap <= 2.0 * LOG_PARTITION_ERROR * BITS_PER_NAT)[known].all())
        num_known.append(int(known.sum()))
    # The longer the step, the fewer are known; the margin alone would not show what went wrong.
    assert num_known[0] >= 10 and num_known == sorted(num_known, reverse=True)
    assert num_known[-1] == 0


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
