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


def log_probs_of(*probs: float) -> Tensor:
    return torch.tensor([probs], dtype=torch.float64).log()


def nats(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


SAFE, RISKY = log_probs_of(0.5, 0.25, 0.25), log_probs_of(0.125, 0.75, 0.125)


def test_nothing_is_shared_with_the_solvers_but_the_gap_of_bans():
    tree = ast.parse(Path(reference.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    inner = [node for node in imports if isinstance(node, ast.ImportFrom) and node.level]
    assert [(node.module, node.names[0].name) for node in inner] == [("spend", "BAN_GAP")]


def test_a_logit_beyond_the_gap_is_banned():
    logits = nats(0.0, -BAN_GAP, -2 * BAN_GAP)[None]
    assert reference.log_softmax(logits)[0].tolist() == [0.0, -BAN_GAP, -INF]
    kept = reference.log_softmax(logits, ban_gap=INF)[0].tolist()
    assert kept == [0.0, -BAN_GAP, -2 * BAN_GAP]


def test_a_clipped_distribution_by_hand():
    # min(c p_r, 2 p_s) = (c/8, 1/2, c/8) sums to 1 at c = 2.
    budget = nats(math.log(2.0))
    log_scale = reference.project_max(RISKY, SAFE, budget)
    assert log_scale.item() == pytest.approx(math.log(2.0), abs=1e-12)
    star = reference.clipped_log_probs(RISKY, SAFE, budget, log_scale)[0].exp().tolist()
    assert star == pytest.approx([0.25, 0.5, 0.25], abs=1e-12)


def test_divergences_by_hand():
    kl = 0.125 * math.log(0.25) + 0.75 * math.log(3.0) + 0.125 * math.log(0.5)
    assert reference.kl_divergence(RISKY, SAFE).item() == pytest.approx(kl, abs=1e-15)
    assert reference.max_divergence(RISKY, SAFE).item() == pytest.approx(math.log(3.0), abs=1e-15)
    floor = reference.support_floor(log_probs_of(0.5, 0.5, 0.0), SAFE).item()
    assert floor == pytest.approx(-math.log(0.75), abs=1e-15)


def test_mass_where_the_safe_model_has_none_costs_infinitely():
    assert reference.kl_divergence(log_probs_of(0.5, 0.5), log_probs_of(1.0, 0.0)).item() == INF
    assert reference.max_divergence(log_probs_of(0.5, 0.5), log_probs_of(1.0, 0.0)).item() == INF
    assert reference.support_floor(log_probs_of(0.0, 1.0), log_probs_of(1.0, 0.0)).item() == INF
    tiny = nats(0.0, -1e5)[None]  # exp(-1e5) is 0
    assert reference.kl_divergence(tiny, log_probs_of(1.0, 0.0)).item() == INF
    assert reference.kl_divergence(log_probs_of(1.0, 0.0), tiny).item() == 0.0
