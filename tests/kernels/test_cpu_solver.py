"""The sums of the torch backend's solver, and the margins that it counts on."""

import numpy as np
import pytest
import torch
from logit_kinds import random_logits

from anchored.kernels import reference
from anchored.kernels.cpu import kl, rows

ROUNDING = 1e-12
"""Nats; of the float64 reference."""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # at beta = 0 the curve has no speed
@pytest.mark.parametrize("kind", ["generic", "memorized", "disjoint_peaks", "two_atoms", "huge"])
def test_every_certified_point_holds_the_true_divergence_within_its_margin(kind):
    risky, safe = random_logits(kind, 40, 300, torch.Generator().manual_seed(4))
    ((_, group),) = rows.row_groups(risky, safe)
    beta = np.linspace(0.0, 1.0, 40)
    points = kl.certified(kl.read_curves(group, np.arange(40)), beta, group.scratch[0])
    log_probs = reference.tilted_log_probs(risky, safe, torch.from_numpy(beta))
    true = reference.kl_divergence(log_probs, safe)
    error = np.abs(points.nats - true.numpy())
    assert np.isfinite(points.nats).all()
    assert (error <= points.margin + ROUNDING * (1.0 + points.nats)).all()
    assert (points.margin <= 1e-6 * (1.0 + points.nats)).all()
