"""What a recorded step claims, how far rounding may move it, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from anchored.decode.ledger import LedgerStep
from anchored.decode.rounding import NUM_DEVIATIONS
from anchored.decode.settings import SamplingConfig
from anchored.decode.verify.step_check import check_step
from anchored.decode.verify.step_distributions import Claim, distributions_of
from anchored.decode.verify.verification import other_supports
from anchored.decode.warpers import Warpers
from anchored.kernels.project import project_kl

TOLERANCE = 0.08
NUM_SYMBOLS = 50


def random_pair(seed: int) -> Tensor:
    """(2, V) logits of the safe and the risky model."""
    generator = torch.Generator().manual_seed(seed)
    return 2.0 * torch.randn(2, NUM_SYMBOLS, generator=generator, dtype=torch.float64)


def honest_claim(rows: Tensor, budget: float) -> Claim:
    """A step that a solver takes at this budget, with uniforms of 0.1."""
    safe, risky = rows[:1], rows[1:]
    uniform = torch.full((1, 3), 0.1, dtype=torch.float64)
    drawn = project_kl(risky, safe, torch.tensor([budget], dtype=torch.float64), uniform)
    recorded = LedgerStep(
        step=0,
        token_id=drawn.token_ids.item(),
        accepted=drawn.accepted.item(),
        budget=budget,
        spend=drawn.spend.item(),
        weight=drawn.weight.item(),
        log_prob=drawn.token_log_probs(drawn.token_ids).item(),
        safe_log_prob=drawn.safe_token_log_probs(drawn.token_ids).item(),
    )
    return Claim(
        kind="tilted",
        charge="mean",
        recorded=recorded,
        safe_logits=safe[0],
        risky_logits=risky[0],
        reads_risky=True,
        safe_tolerance=TOLERANCE,
        risky_tolerance=TOLERANCE,
        drawn=drawn,
        uniform=(0.1, 0.1, 0.1),
    )


def random_logits(safe: Tensor, risky: Tensor) -> tuple[Tensor, Tensor]:
    return safe, risky


def far_apart(safe: Tensor, risky: Tensor) -> tuple[Tensor, Tensor]:
    """Each is nearly certain of a token of its own, 60 nats from the other's."""
    safe[0], risky[1] = 30.0, 30.0
    safe[1], risky[0] = -30.0, -30.0
    return safe, risky


def alike(safe: Tensor, risky: Tensor) -> tuple[Tensor, Tensor]:
    return safe, safe.clone()


@pytest.mark.parametrize("tolerance", [1e-3, pytest.param(0.08, marks=pytest.mark.slow), 1.2])
@pytest.mark.parametrize("weight", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("kind", [random_logits, far_apart, alike])
def test_the_tolerances_of_figures_cover_noise_and_little_more(kind, weight, tolerance):
    safe, risky = kind(*random_pair(4))
    generator = torch.Generator().manual_seed(1)
    claim = replace(honest_claim(random_pair(4), 1.0), safe_logits=safe, risky_logits=risky)
    claim = replace(claim, safe_tolerance=tolerance, risky_tolerance=tolerance)
    claim = replace(claim, recorded=replace(claim.recorded, spend=1.0, weight=weight, token_id=0))
    exact = distributions_of(claim)
    nats, log_probs = [], []
    for _ in range(200):
        noise = tolerance / NUM_DEVIATIONS * torch.randn(2, NUM_SYMBOLS, generator=generator)
        rows = {"safe_logits": safe + noise[0], "risky_logits": risky + noise[1]}
        moved = distributions_of(replace(claim, **rows))
        nats.append(abs(moved.divergence - exact.divergence))
        log_probs.append(abs(moved.star[0] - exact.star[0]).item())
    for errors, allowed in (
        (nats, exact.divergence_tolerance),
        (log_probs, exact.token_tolerance),
    ):
        assert max(errors) < allowed < 12.0 * max(errors) + 1e-8


@pytest.mark.parametrize(("raised", "is_explained"), [(0.01, True), (0.5, False)])
def test_rounding_may_decide_whether_a_budget_pays_for_the_common_support(raised, is_explained):
    # Recorded: mass 2/3 is shared, which costs log 1.5. Replayed: it costs a little more.
    risky, budget = [0.0, 0.0, -math.inf], math.log(1.5) + 1e-4
    recorded = honest_claim(torch.tensor([[0.0] * 3, risky]).double(), budget).recorded
    replayed = honest_claim(torch.tensor([[0.0, 0.0, raised], risky]).double(), budget)
    assert recorded.spend > 0.0 == replayed.recorded.spend
    report = check_step(replace(replayed, recorded=recorded))
    assert (report.failures == []) == is_explained


@pytest.mark.parametrize(("left", "is_explained"), [(1e-3, True), (5.0, False)])
def test_rounding_may_decide_whether_a_budget_pays_for_the_whole_risky_model(left, is_explained):
    whole = honest_claim(random_pair(4), 20.0)
    recorded = replace(whole.recorded, budget=whole.recorded.spend + left)
    nothing = honest_claim(random_pair(4), 0.0).drawn
    report = check_step(replace(whole, recorded=recorded, drawn=nothing))
    assert recorded.weight == 1.0 and (report.failures == []) == is_explained


@pytest.mark.parametrize(
    ("sampling", "symbols"),
    [({"top_k": 2}, {1, 2}), ({"top_p": 0.9}, {3}), ({"min_p": 0.12}, {3}), ({"top_k": 1}, set())],
    ids=str,
)
def test_symbols_at_the_edge_of_a_truncation_may_stand_on_either_side(sampling, symbols):
    # The first three have nearly 0.9, the fourth is 0.12 times the largest.
    probs = torch.tensor([0.5, 0.2, 0.199, 0.06, 0.041], dtype=torch.float64)
    config = SamplingConfig(temperature=1.0, repetition_penalty=1.0, **sampling)
    nothing_seen = torch.zeros(1, 5, dtype=torch.bool)

    def warp(settings: SamplingConfig) -> Tensor:
        return Warpers(settings, [4])(probs.log()[None], nothing_seen)[0]

    kept = warp(config)
    flipped = set()
    for rows in other_supports({"safe": warp}, config, {"safe": 0.01}):
        differs = (rows["safe"] != kept).nonzero()[:, 0].tolist()
        if len(differs) == 2:  # changed for each other, see below
            continue
        assert len(differs) == 1
        flipped |= set(differs)
    assert flipped == symbols


@pytest.mark.parametrize("sampling", [{"top_k": 2}, {"top_p": 0.65}, {"top_p": 0.8}])
def test_two_symbols_that_are_nearly_alike_may_change_places_across_a_cut(sampling):
    """A top-k and a top-p keep so many symbols, and rounding decides which of two is the last."""
    probs = torch.tensor([0.5, 0.2001, 0.2, 0.06, 0.0399], dtype=torch.float64)
    config = SamplingConfig(temperature=1.0, repetition_penalty=1.0, **sampling)
    nothing_seen = torch.zeros(1, 5, dtype=torch.bool)

    def warp(settings: SamplingConfig) -> Tensor:
        return Warpers(settings, [4])(probs.log()[None], nothing_seen)[0]

    cuts_between = (warp(config) > -math.inf).tolist() == [True, True, False, False, False]
    supports = [
        (rows["safe"] > -math.inf).tolist()
        for rows in other_supports({"safe": warp}, config, {"safe": 0.001})
    ]
    assert ([True, False, True, False, False] in supports) == cuts_between
