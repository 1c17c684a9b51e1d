"""Both projections at the ends of what numbers hold, against an oracle in extended precision."""

import math

import long_double_laws as oracle
import pytest
import torch
from extreme_logits import EXTREME_KINDS, extreme_budgets, extreme_pair

from anchored.kernels.clipping import project_max
from anchored.kernels.projection import project_kl
from anchored.kernels.spend import SPEND_QUANTUM
from anchored.kernels.uniforms import uniforms

ORACLE_ERROR = 1e-12
"""Nats, beside a relative 1e-13: what float64 numbers handed to the oracle leave open."""

# 6 kinds x 2 divergences x 1,668 rows = 20,016 rows.
SIZES = [(1, 50), (2, 300), (3, 300), (17, 500), (257, 400), (5003, 110), (128_256, 8)]
PROJECTS = {"kl": project_kl, "max": project_max}


def violations(divergence, risky, safe, budget, *, backend):
    """One line for every row that overspends, leaves the support, or is no distribution."""
    uniform = uniforms(torch.arange(len(budget)), torch.arange(len(budget)))
    project = PROJECTS[divergence]
    projection = project(risky, safe, budget, uniform, backend=backend)
    # The same numbers in float64: the same law, with log-probabilities in float64.
    wide = project(risky.double(), safe.double(), budget, backend=backend)
    assert torch.equal(projection.spend, wide.spend)
    log_probs = wide.log_probs().numpy()
    for row in range(len(budget)):
        facts = Row(projection, log_probs[row], risky[row].numpy(), safe[row].numpy(), row)
        for fault in facts.faults(divergence, budget[row].item()):
            yield f"row {row}, budget {budget[row]:.3g}: {fault}"


class Row:
    """What a projection says of one row, beside the logits."""

    def __init__(self, projection, star, risky, safe, row):
        self.star, self.risky, self.safe = star, risky, safe
        self.spend, self.weight = projection.spend[row].item(), projection.weight[row].item()
        self.is_safe_only = bool(projection.is_safe_only[row])
        self.token = projection.token_ids[row].item()

    def faults(self, divergence, budget):
        if self.is_safe_only and self.spend != 0.0:
            yield f"p_s alone spends {self.spend}"
        if not self.spend <= budget or self.spend % SPEND_QUANTUM:
            yield f"spend {self.spend}"
        true = self.divergence(divergence)
        if not true <= self.spend + ORACLE_ERROR + 1e-13 * self.spend:
            yield f"true divergence {true}, spend {self.spend}"
        if not abs(oracle.total_mass(self.star) - 1.0) < 1e-8:
            yield f"total mass {oracle.total_mass(self.star)}"
        if not self.star[self.token] > -math.inf:
            yield f"token {self.token} of probability 0 was drawn"

    def divergence(self, divergence):
        """Of the law that the weight stands for (kl), or of the log-probabilities given (max)."""
        if divergence == "max":
            return oracle.max_divergence(self.star, self.safe) if not self.is_safe_only else 0.0
        law = oracle.log_probs(self.safe)
        if not self.is_safe_only:
            law = oracle.tilted(self.risky, self.safe, self.weight)
        return oracle.kl_divergence(law, self.safe)


@pytest.mark.parametrize("divergence", PROJECTS)
@pytest.mark.parametrize("kind", EXTREME_KINDS)
def test_no_extreme_row_overspends(kind, divergence):
    generator = torch.Generator().manual_seed(EXTREME_KINDS.index(kind))
    for vocab_size, num_rows in SIZES:
        risky, safe = extreme_pair(kind, num_rows, vocab_size, generator)
        budget = extreme_budgets(num_rows, generator)
        found = list(violations(divergence, risky, safe, budget, backend="torch"))
        assert not found, f"{len(found)} of {vocab_size} tokens: {found[:5]}"
