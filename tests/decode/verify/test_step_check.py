"""What a recorded step claims, how far rounding may move it, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from anchored.decode.ledger import LedgerStep
from anchored.decode.rules.rule import token_spend
from anchored.decode.settings import Charge, SamplingConfig
from anchored.decode.verify.rounding import NUM_DEVIATIONS
from anchored.decode.verify.step_check import check_step
from anchored.decode.verify.step_distributions import (
    Claim,
    distributions_of,
    unclipped_ratios,
)
from anchored.decode.verify.verification import other_supports
from anchored.decode.warpers import Warpers
from anchored.kernels import reference
from anchored.kernels.project import project

TOLERANCE = 0.08
NUM_SYMBOLS = 50


def random_pair(seed: int) -> Tensor:
    """(2, V) logits of the safe and the risky model."""
    generator = torch.Generator().manual_seed(seed)
    return 2.0 * torch.randn(2, NUM_SYMBOLS, generator=generator, dtype=torch.float64)


def honest_claim(
    rows: Tensor,
    budget: float,
    charge: Charge = "mean",
    uniform: tuple[float, float, float] = (0.1, 0.1, 0.1),
) -> Claim:
    """A step that a solver takes at this budget."""
    safe, risky = rows[:1], rows[1:]
    nats, numbers = (torch.tensor([x], dtype=torch.float64) for x in (budget, uniform))
    drawn = project(risky, safe, nats, numbers, charge=charge)
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
        kind="tilted" if charge == "mean" else "clipped",
        charge=charge,
        recorded=recorded,
        safe_logits=safe[0],
        risky_logits=risky[0],
        reads_risky=True,
        safe_tolerance=TOLERANCE,
        risky_tolerance=TOLERANCE,
        drawn=drawn,
        uniform=uniform,
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


@pytest.mark.parametrize("tolerance", [1e-3, 1.2])
@pytest.mark.parametrize("budget", [0.05, 2.0])
@pytest.mark.parametrize("kind", [random_logits, far_apart, alike])
def test_the_tolerance_of_a_cost_covers_noise_and_little_more(kind, budget, tolerance):
    rows = torch.stack(kind(*random_pair(4)))
    generator, honest = torch.Generator().manual_seed(1), honest_claim(rows, budget, "drawn")
    for token_id in (0, 2, 3, 7):
        recorded = replace(honest.recorded, token_id=token_id)
        claim = replace(
            honest, recorded=recorded, safe_tolerance=tolerance, risky_tolerance=tolerance
        )
        exact, errors = distributions_of(claim), []
        for _ in range(100):
            noise = tolerance / NUM_DEVIATIONS * torch.randn(2, NUM_SYMBOLS, generator=generator)
            noisy = honest_claim(rows + noise, budget, "drawn").drawn
            cost = token_spend(noisy, torch.tensor([token_id])).item()
            errors.append(cost - exact.divergence)
        least, most = -exact.divergence_tolerance, exact.divergence_tolerance + exact.slack
        assert least <= min(errors) and max(errors) <= most
        is_at_cap = unclipped_ratios(rows[1], rows[0], budget)[token_id] > budget + 3.0 * tolerance
        largest = 0.0 if is_at_cap else max(map(abs, errors))
        assert exact.divergence_tolerance < 12.0 * largest + 1e-8


@pytest.mark.parametrize("budget", [1e-6, 0.3, 2.0, 40.0, 1000.0])
@pytest.mark.parametrize("kind", [random_logits, far_apart, alike])
def test_log_ratios_before_they_are_clipped_give_the_distribution_of_the_reference(kind, budget):
    rows = torch.stack(kind(*random_pair(4)))
    rows[0, 5], rows[1, 6] = -math.inf, -math.inf
    safe, risky = rows[:1], rows[1:]
    nats = torch.tensor([budget], dtype=torch.float64)
    scale = reference.project_max(risky, safe, nats).nan_to_num(math.inf)
    expected = reference.clipped_log_probs(risky, safe, nats, scale)[0]
    ratios = unclipped_ratios(risky[0], safe[0], budget)
    star = reference.log_softmax(safe)[0] + ratios.clamp(max=budget)
    assert torch.equal(star == -math.inf, expected == -math.inf)
    assert star.exp().sub(expected.exp()).abs().max() < 1e-12
    assert (scale.item() == math.inf) == (ratios == math.inf).any()


def test_steps_that_noise_moved_are_explained():
    """Each is drawn from logits with the noise that the tolerance is 4 deviations of."""
    generator = torch.Generator().manual_seed(2)
    for number in range(60):
        rows = random_pair(number)
        uniform = tuple(torch.rand(3, generator=generator, dtype=torch.float64).tolist())
        noise = TOLERANCE / NUM_DEVIATIONS * torch.randn(2, NUM_SYMBOLS, generator=generator)
        budget = (0.01, 0.1, 1.0, 5.0)[number % 4]
        recorded = honest_claim(rows + noise, budget, "drawn", uniform).recorded
        replayed = honest_claim(rows, budget, "drawn", uniform)
        assert check_step(replace(replayed, recorded=recorded)).failures == []


def test_a_token_is_the_seeds_if_one_tolerance_moves_the_distributions_so_that_it_is():
    claim, needed = honest_claim(random_pair(0), 1.0), []
    for number in range(40):
        moved = replace(claim, uniform=(0.1 + 0.02 * number, 0.1, 0.1))
        report = check_step(moved)
        assert report.failures == ["the seed gives another token"] * (report.rounding > 1.0)
        needed.append(report.rounding)
    assert any(0.0 < each <= 1.0 for each in needed) and any(1.0 < each < 10.0 for each in needed)


def test_who_draws_gets_tokens_that_noise_made_likelier():
    """On average a cost is above its replay by half the variance of the difference."""
    generator, tolerance = torch.Generator().manual_seed(3), 2.0
    rows, errors, slack = random_pair(0), [], []
    for _ in range(200):
        uniform = tuple(torch.rand(3, generator=generator, dtype=torch.float64).tolist())
        noise = tolerance / NUM_DEVIATIONS * torch.randn(2, NUM_SYMBOLS, generator=generator)
        recorded = honest_claim(rows + noise, 100.0, "drawn", uniform).recorded
        claim = replace(
            honest_claim(rows, 100.0, "drawn", uniform),
            recorded=recorded,
            safe_tolerance=tolerance,
            risky_tolerance=tolerance,
        )
        claimed = distributions_of(claim)
        errors.append(recorded.spend - claimed.divergence)
        slack.append(claimed.slack)
    mean, allowed = sum(errors) / len(errors), sum(slack) / len(slack)
    assert 0.1 < mean < allowed < 4.0 * mean


@pytest.mark.parametrize("number", [2, 31, 32])
def test_errors_of_the_token_alone_take_it_below_its_cap(number):
    """The token nearest to its cap, of a row of which little else is free."""
    rows, budget, tolerance = random_pair(number), 0.01, 0.5
    ratios = unclipped_ratios(rows[1], rows[0], budget)
    token_id = int(torch.where(ratios > budget, ratios, math.inf).argmin())
    noisy = rows.clone()
    noisy[1, token_id] -= 3.5 * tolerance / NUM_DEVIATIONS
    cost = token_spend(honest_claim(noisy, budget, "drawn").drawn, torch.tensor([token_id]))
    claim = honest_claim(rows, budget, "drawn")
    recorded = replace(claim.recorded, token_id=token_id)
    claimed = distributions_of(
        replace(claim, recorded=recorded, safe_tolerance=tolerance, risky_tolerance=tolerance)
    )
    error = claimed.divergence - cost.item()
    assert 0.01 < error < claimed.divergence_tolerance < 12.0 * error


def nearly_all(mass: float) -> Tensor:
    """Logits of which 5 nats give the first token this mass, or all but a millionth; the last one
    is near its cap where they leave about 0.1 for the others."""
    safe = [mass * math.exp(-5.0), 0.5, 0.49, 1e-4]
    return torch.tensor([safe, [1.0, 1e-6, 1e-6, 4.7e-7]], dtype=torch.float64).log()


@pytest.mark.parametrize(("tolerance", "is_explained"), [(0.5, True), (0.04, False)])
@pytest.mark.parametrize(
    ("recorded_mass", "replayed_mass", "uniform", "token_id"),
    [(0.95, 1.28, (0.3, 0.01, 0.5), 1), (0.985, 0.9, (0.3, 0.5, 0.999), 3)],
)
def test_c_may_jump_where_one_token_has_nearly_all(
    recorded_mass, replayed_mass, uniform, token_id, tolerance, is_explained
):
    recorded = honest_claim(nearly_all(recorded_mass), 5.0, "drawn", uniform).recorded
    replayed = honest_claim(nearly_all(replayed_mass), 5.0, "drawn", uniform)
    claim = replace(replayed, safe_tolerance=tolerance, risky_tolerance=tolerance)
    failures = check_step(replace(claim, recorded=recorded)).failures
    assert recorded.token_id == token_id and (failures == []) == is_explained


def test_a_solver_may_miss_c_where_little_is_free():
    rows = torch.tensor([[0.0, 0.0], [30.0, 0.0]], dtype=torch.float64)
    for left in (1e-3, 1e-5, 1e-7):
        claim = honest_claim(rows, math.log(2.0) - left, "drawn", (0.7, 0.0, 0.5))
        exact = replace(claim, safe_tolerance=1e-12, risky_tolerance=1e-12)
        assert claim.recorded.token_id == 1 and check_step(exact).failures == []
        cost = claim.recorded.spend - 1e-8 / left
        other = replace(claim.recorded, spend=cost, log_prob=claim.recorded.safe_log_prob + cost)
        assert check_step(replace(exact, recorded=other)).failures != []


@pytest.mark.parametrize(("by", "figure"), [(2e-7, "cost of the token"), (1e-8, "")])
def test_a_cost_is_the_difference_of_the_two_figures_next_to_it(by, figure):
    claim = honest_claim(random_pair(4), 5.0, "drawn")
    moved = replace(claim.recorded, log_prob=claim.recorded.log_prob - by)
    failures = check_step(replace(claim, recorded=moved)).failures
    assert [failure.partition(" differs")[0] for failure in failures] == [figure] * bool(figure)


@pytest.mark.parametrize(("times", "figures"), [(6.0, []), (100.0, ["spend", "spend by the rule"])])
def test_a_spend_is_above_its_divergence_by_a_few_of_a_solvers_margins(times, figures):
    """Of logits of 10,000 nats the margin for rounding is all that counts."""
    claim = honest_claim(1e4 * random_pair(1), 0.5)
    claim = replace(claim, safe_tolerance=1e-12, risky_tolerance=1e-12)
    nats = distributions_of(claim).divergence
    margin = claim.recorded.spend - nats
    spend = nats + times * margin
    other = replace(claim.recorded, spend=spend, budget=claim.recorded.budget + spend)
    failures = check_step(replace(claim, recorded=other)).failures
    names = [failure.partition(" differs")[0] for failure in failures]
    assert margin > 1e-6 and [name for name in names if name != "budget left"] == figures


def test_a_budget_that_binds_is_spent_but_for_a_solvers_fraction():
    claim = honest_claim(random_pair(1), 3.0)
    for more, figures in ((0.0, 0), (1e-3, 1)):
        other = replace(claim.recorded, budget=claim.recorded.budget + more)
        failures = check_step(replace(claim, recorded=other)).failures
        assert [failure.startswith("budget left differs") for failure in failures] == [
            True
        ] * figures


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
