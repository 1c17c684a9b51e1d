"""The definitions that solvers and ledgers are judged by: by hand for three symbols, and apart."""

import ast
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from anchored.kernels import reference
from anchored.kernels.spend import BAN_GAP

INF = math.inf


def law(*probs: float) -> Tensor:
    return torch.tensor([probs], dtype=torch.float64).log()


def nats(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


SAFE, RISKY = law(0.5, 0.25, 0.25), law(0.125, 0.75, 0.125)


def test_nothing_is_shared_with_the_solvers_but_the_gap_of_bans():
    tree = ast.parse(Path(reference.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    inner = [node for node in imports if isinstance(node, ast.ImportFrom) and node.level]
    assert [(node.module, node.names[0].name) for node in inner] == [("spend", "BAN_GAP")]


def test_logits_become_log_probabilities():
    logits = nats(0.0, math.log(3.0), -INF)[None] + 7.0
    found = reference.log_softmax(logits)[0].exp().tolist()
    assert found == pytest.approx([0.25, 0.75, 0.0], abs=1e-15)


@pytest.mark.parametrize("logits", [[0.0, math.nan], [0.0, INF], [-INF, -INF]])
def test_what_is_no_distribution_is_nan_everywhere(logits):
    assert reference.log_softmax(torch.tensor([logits])).isnan().all()


def test_a_logit_beyond_the_gap_is_banned():
    logits = nats(0.0, -BAN_GAP, -2 * BAN_GAP)[None]
    assert reference.log_softmax(logits)[0].tolist() == [0.0, -BAN_GAP, -INF]
    kept = reference.log_softmax(logits, ban_gap=INF)[0].tolist()
    assert kept == [0.0, -BAN_GAP, -2 * BAN_GAP]


def test_a_tilted_law_by_hand():
    # Weights sqrt(p_s p_r): 1/4, sqrt(3)/4, 1/(4 sqrt 2).
    weights = [0.25, math.sqrt(3.0) / 4.0, math.sqrt(1.0 / 32.0)]
    star = reference.tilted_log_probs(RISKY, SAFE, nats(0.5))[0].exp().tolist()
    assert star == pytest.approx([w / sum(weights) for w in weights], abs=1e-15)
    assert_near(reference.tilted_log_probs(RISKY, SAFE, nats(0.0)), SAFE)
    assert_near(reference.tilted_log_probs(RISKY, SAFE, nats(1.0)), RISKY)


def test_a_tilted_law_has_no_mass_off_the_common_support():
    star = reference.tilted_log_probs(law(0.5, 0.5, 0.0), law(0.5, 0.25, 0.25), nats(0.0))
    assert star[0].exp().tolist() == pytest.approx([2 / 3, 1 / 3, 0.0], abs=1e-15)
    assert reference.tilted_log_probs(law(0.0, 1.0), law(1.0, 0.0), nats(0.5)).isnan().all()


def test_a_clipped_law_by_hand():
    # min(c p_r, 2 p_s) = (c/8, 1/2, c/8) sums to 1 at c = 2.
    budget = nats(math.log(2.0))
    log_scale = reference.project_max(RISKY, SAFE, budget)
    assert log_scale.item() == pytest.approx(math.log(2.0), abs=1e-12)
    star = reference.clipped_probs(RISKY, SAFE, budget, log_scale)[0].tolist()
    assert star == pytest.approx([0.25, 0.5, 0.25], abs=1e-12)


def test_a_cap_that_nothing_reaches_leaves_the_risky_law():
    log_scale = reference.project_max(RISKY, SAFE, nats(2.0))
    assert log_scale.item() == pytest.approx(0.0, abs=1e-15)
    assert_near(reference.clipped_log_probs(RISKY, SAFE, nats(2.0), log_scale), RISKY)


def test_a_cap_below_the_floor_forces_the_safe_law():
    rows = law(0.5, 0.5, 0.0), law(0.5, 0.25, 0.25)
    assert reference.project_max(*rows, nats(0.1)).isnan().all()
    assert reference.project_kl(*rows, nats(0.1)).isnan().all()
    clipped = reference.clipped_probs(*rows, nats(0.1), nats(INF))[0].tolist()
    assert clipped == pytest.approx([math.exp(0.1) / 2, math.exp(0.1) / 4, 0.0], abs=1e-15)


def test_the_weight_of_a_tilted_law_spends_its_budget():
    weight = reference.project_kl(RISKY, SAFE, nats(0.1))
    star = reference.tilted_log_probs(RISKY, SAFE, weight)
    assert reference.kl_divergence(star, SAFE).item() == pytest.approx(0.1, abs=1e-12)
    assert reference.project_kl(RISKY, SAFE, nats(10.0)).item() == 1.0


def test_divergences_by_hand():
    kl = 0.125 * math.log(0.25) + 0.75 * math.log(3.0) + 0.125 * math.log(0.5)
    assert reference.kl_divergence(RISKY, SAFE).item() == pytest.approx(kl, abs=1e-15)
    assert reference.max_divergence(RISKY, SAFE).item() == pytest.approx(math.log(3.0), abs=1e-15)
    floor = reference.support_floor(law(0.5, 0.5, 0.0), SAFE).item()
    assert floor == pytest.approx(-math.log(0.75), abs=1e-15)


def test_mass_where_the_safe_law_has_none_costs_infinitely():
    assert reference.kl_divergence(law(0.5, 0.5), law(1.0, 0.0)).item() == INF
    assert reference.max_divergence(law(0.5, 0.5), law(1.0, 0.0)).item() == INF
    assert reference.support_floor(law(0.0, 1.0), law(1.0, 0.0)).item() == INF
    tiny = nats(0.0, -1e5)[None]  # exp(-1e5) is 0
    assert reference.kl_divergence(tiny, law(1.0, 0.0)).item() == INF
    assert reference.kl_divergence(law(1.0, 0.0), tiny).item() == 0.0


def test_a_law_that_is_none_has_no_divergence():
    nan = torch.full((1, 2), math.nan, dtype=torch.float64)
    assert reference.kl_divergence(nan, law(0.5, 0.5)).isnan().all()
    assert reference.max_divergence(nan, law(0.5, 0.5)).isnan().all()


def test_weights_below_every_number_are_clipped_all_the_same():
    risky, safe = nats(0.0, -900.0)[None], nats(-900.0, 0.0)[None]
    log_scale = reference.project_max(risky, safe, nats(1.0))
    star = reference.clipped_log_probs(risky, safe, nats(1.0), log_scale)
    assert log_scale.item() == pytest.approx(900.0)
    assert star.logsumexp(-1).item() == pytest.approx(0.0, abs=1e-12)
    assert reference.max_divergence(star, safe).item() <= 1.0 + 1e-12


def assert_near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
