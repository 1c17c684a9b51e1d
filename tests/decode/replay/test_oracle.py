"""The verifier's own laws: by hand for three symbols, and against the definitions of kernels/."""

import math

import pytest
import torch

from anchored.decode.replay import oracle
from anchored.kernels import reference
from anchored.kernels.spend import BAN_GAP

INF = math.inf


def law(*probs: float) -> torch.Tensor:
    return torch.tensor(probs, dtype=torch.float64).log()


SAFE, RISKY = law(0.5, 0.25, 0.25), law(0.125, 0.75, 0.125)


def test_logits_become_log_probabilities():
    found = oracle.law_of(torch.tensor([0.0, math.log(3.0), -INF], dtype=torch.float64) + 7.0)
    assert found.exp().tolist() == pytest.approx([0.25, 0.75, 0.0], abs=1e-15)


@pytest.mark.parametrize("logits", [[0.0, math.nan], [0.0, INF], [-INF, -INF]])
def test_what_is_no_distribution_is_nan_everywhere(logits):
    assert oracle.law_of(torch.tensor(logits)).isnan().all()


def test_a_logit_beyond_the_gap_is_banned():
    found = oracle.law_of(torch.tensor([0.0, -BAN_GAP, -2 * BAN_GAP], dtype=torch.float64))
    assert found.tolist() == [0.0, -BAN_GAP, -INF]


def test_a_tilted_law_by_hand():
    # Weights sqrt(p_s p_r): 1/4, sqrt(3)/4, 1/(4 sqrt 2).
    weights = [0.25, math.sqrt(3.0) / 4.0, math.sqrt(1.0 / 32.0)]
    star = oracle.tilted(SAFE, RISKY, 0.5)
    assert star.exp().tolist() == pytest.approx([w / sum(weights) for w in weights], abs=1e-15)
    assert torch.equal(oracle.tilted(SAFE, RISKY, 0.0), SAFE)
    assert_near(oracle.tilted(SAFE, RISKY, 1.0), RISKY)


def test_a_tilted_law_has_no_mass_off_the_common_support():
    star = oracle.tilted(law(0.5, 0.25, 0.25), law(0.5, 0.5, 0.0), 0.0)
    assert star.exp().tolist() == pytest.approx([2 / 3, 1 / 3, 0.0], abs=1e-15)
    assert oracle.tilted(law(1.0, 0.0), law(0.0, 1.0), 0.5).isnan().all()


def test_a_clipped_law_by_hand():
    # min(c p_r, 2 p_s) = (c/8, 1/2, c/8) sums to 1 at c = 2.
    star, log_scale = oracle.clipped(SAFE, RISKY, math.log(2.0))
    assert star.exp().tolist() == pytest.approx([0.25, 0.5, 0.25], abs=1e-12)
    assert log_scale == pytest.approx(math.log(2.0), abs=1e-12)


def test_a_cap_that_nothing_reaches_leaves_the_risky_law():
    star, log_scale = oracle.clipped(SAFE, RISKY, 2.0)
    assert log_scale == pytest.approx(0.0, abs=1e-15)
    assert_near(star, RISKY)


def test_a_cap_below_the_floor_gives_the_safe_law_on_the_common_support():
    star, log_scale = oracle.clipped(law(0.5, 0.25, 0.25), law(0.5, 0.5, 0.0), 0.1)
    assert log_scale == INF
    assert star.exp().tolist() == pytest.approx([2 / 3, 1 / 3, 0.0], abs=1e-15)


def test_divergences_by_hand():
    kl = 0.125 * math.log(0.25) + 0.75 * math.log(3.0) + 0.125 * math.log(0.5)
    assert oracle.kl(RISKY, SAFE) == pytest.approx(kl, abs=1e-15)
    assert oracle.largest_ratio(RISKY, SAFE) == pytest.approx(math.log(3.0), abs=1e-15)
    assert oracle.floor(SAFE, law(0.5, 0.5, 0.0)) == pytest.approx(-math.log(0.75), abs=1e-15)


def test_mass_where_the_safe_law_has_none_costs_infinitely():
    assert oracle.kl(law(0.5, 0.5), law(1.0, 0.0)) == INF
    assert oracle.largest_ratio(law(0.5, 0.5), law(1.0, 0.0)) == INF
    assert oracle.floor(law(1.0, 0.0), law(0.0, 1.0)) == INF


def test_a_law_that_is_none_has_no_divergence():
    nan = torch.full((2,), math.nan, dtype=torch.float64)
    assert math.isnan(oracle.kl(nan, law(0.5, 0.5)))
    assert math.isnan(oracle.largest_ratio(nan, law(0.5, 0.5)))


@pytest.mark.parametrize("scale", [0.5, 5.0, 60.0])
@pytest.mark.parametrize("has_bans", [False, True])
def test_both_projections_are_those_of_the_definition(scale, has_bans):
    generator = torch.Generator().manual_seed(3)
    logits = scale * torch.randn(2, 4, 33, generator=generator, dtype=torch.float64)
    if has_bans:
        logits[torch.rand(logits.shape, generator=generator) < 0.2] = -INF
    risky, safe = logits
    floor = reference.support_floor(risky, safe)
    budget = floor + torch.tensor([0.01, 0.3, 1.0, 4.0], dtype=torch.float64)
    weight, log_scale = (
        solve(risky, safe, budget) for solve in (reference.project_kl, reference.project_max)
    )
    tilted = reference.tilted_log_probs(risky, safe, weight)
    clipped = reference.clipped_probs(risky, safe, budget, log_scale)
    for row in range(len(budget)):
        laws = oracle.law_of(safe[row]), oracle.law_of(risky[row])
        star = oracle.tilted(*laws, weight[row].item())
        assert_near(star.exp(), tilted[row].exp())
        divergence = reference.kl_divergence(tilted[row : row + 1], safe[row : row + 1]).item()
        assert oracle.kl(star, laws[0]) == pytest.approx(divergence, abs=1e-12)
        star, scale_found = oracle.clipped(*laws, budget[row].item())
        assert_near(star.exp(), clipped[row])
        assert scale_found == pytest.approx(log_scale[row].item(), abs=1e-9)
        assert oracle.floor(*laws) == pytest.approx(floor[row].item(), abs=1e-12)


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=0)


def test_a_mass_below_every_number_where_the_other_law_has_none_is_infinite():
    star = torch.tensor([0.0, -1e5], dtype=torch.float64)  # exp(-1e5) is 0
    assert oracle.kl(star, law(1.0, 0.0)) == INF
    assert oracle.kl(law(1.0, 0.0), star) == 0.0
