"""Recorded steps against a replay: how far rounding may move them and their sums."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from anchored.decode.ledger import LedgerStep
from anchored.decode.rules.rule import token_spend
from anchored.decode.settings import Charge, SamplingConfig
from anchored.decode.verify.rounding import NUM_DEVIATIONS
from anchored.decode.verify.step import Step, unclipped_ratios
from anchored.decode.verify.step_check import check_step
from anchored.decode.verify.supports import other_supports
from anchored.decode.verify.text_check import sums_apart
from anchored.decode.warpers import Warpers
from anchored.kernels import reference
from anchored.kernels.project import project
from anchored.kernels.projection import Projection

TOLERANCE = 0.08
NUM_SYMBOLS = 50
THIRDS = 0.1, 0.1, 0.1


def random_pair(seed: int) -> Tensor:
    """(2, V) logits of the safe and the risky model."""
    generator = torch.Generator().manual_seed(seed)
    return 2.0 * torch.randn(2, NUM_SYMBOLS, generator=generator, dtype=torch.float64)


def far_apart() -> Tensor:
    """Each is nearly certain of one token, 60 nats from the other's."""
    rows = random_pair(4)
    rows[:, :2] = torch.tensor([[30.0, -30.0], [-30.0, 30.0]])
    return rows


KINDS = {
    "random": random_pair(4),
    "far apart": far_apart(),
    "alike": random_pair(4)[:1].expand(2, -1),
}


def solved(rows: Tensor, budget: float, charge: Charge = "mean", uniform=THIRDS) -> Projection:
    """p* of pairs of rows (N, 2, V), with tokens by these uniforms or by those of each."""
    numbers = torch.tensor(uniform, dtype=torch.float64).expand(len(rows), 3)
    nats = torch.full((len(rows),), budget, dtype=torch.float64)
    return project(rows[:, 1], rows[:, 0], nats, numbers, charge=charge)


def recorded_step(rows: Tensor, budget: float, charge: Charge = "mean", uniform=THIRDS):
    drawn = solved(rows[None], budget, charge, uniform)
    return LedgerStep(
        step=0,
        token_id=drawn.token_ids.item(),
        accepted=drawn.accepted.item(),
        budget=budget,
        spend=drawn.spend.item(),
        weight=drawn.weight.item(),
        log_prob=drawn.token_log_probs(drawn.token_ids).item(),
        safe_log_prob=drawn.safe_token_log_probs(drawn.token_ids).item(),
    )


def honest_step(
    rows: Tensor, budget: float, charge: Charge = "mean", uniform=THIRDS, by=TOLERANCE, record=None
) -> Step:
    """A step that a solver takes at this budget, or another record of it."""
    return Step(
        kind="tilted" if charge == "mean" else "clipped",
        charge=charge,
        recorded=record or recorded_step(rows, budget, charge, uniform),
        safe_logits=rows[0],
        risky_logits=rows[1],
        reads_risky=True,
        safe_by=by,
        risky_by=by,
        drawn=solved(rows[None], budget, charge, uniform),
        uniform=uniform,
    )


def with_record(step: Step, **figures) -> Step:
    return replace(step, recorded=replace(step.recorded, **figures))


def noises(seed: int, by: float, count: int) -> tuple[Tensor, list[list[float]]]:
    """Noise (count, 2, V) of the logits that the tolerance is 4 deviations of, and uniforms."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, 2, NUM_SYMBOLS, generator=generator)
    uniform = torch.rand(count, 3, generator=generator, dtype=torch.float64)
    return by / NUM_DEVIATIONS * noise, uniform.tolist()


def failed(step: Step) -> list[str]:
    """The figures that differ."""
    return [failure.partition(" differs")[0] for failure in check_step(step).failures]


@pytest.mark.parametrize("tolerance", [1e-3, 1.2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_tolerances_of_figures_cover_noise_and_little_more(kind, tolerance):
    rows, (noise, _) = KINDS[kind], noises(1, tolerance, 100)
    safe, risky = (rows + noise).unbind(1)
    for weight in (0.1, 0.5, 1.0):
        honest = honest_step(rows, 1.0, by=tolerance)
        exact = with_record(honest, spend=1.0, weight=weight, token_id=0)
        noisy = reference.tilted_log_probs(risky, safe, torch.full((100,), weight))
        nats = reference.kl_divergence(noisy, safe) - exact.nats
        for errors, by in ((nats, exact.nats_by), (noisy[:, 0] - exact.star[0], exact.token_by)):
            largest = errors.abs().max()
            assert largest < by < 12.0 * largest + 1e-8


@pytest.mark.parametrize("tolerance", [1e-3, 1.2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_tolerance_of_a_cost_covers_noise_and_little_more(kind, tolerance):
    rows, (noise, _) = KINDS[kind], noises(1, tolerance, 60)
    for budget, token_id in ((0.05, 0), (0.05, 3), (2.0, 2), (2.0, 7)):
        exact = with_record(honest_step(rows, budget, "drawn", by=tolerance), token_id=token_id)
        noisy = solved(rows + noise, budget, "drawn")
        errors = token_spend(noisy, torch.full((60,), token_id)) - exact.nats
        assert -exact.nats_by <= errors.min() and errors.max() <= exact.nats_by + exact.slack
        is_at_cap = unclipped_ratios(rows[1], rows[0], budget)[token_id] > budget + 3.0 * tolerance
        largest = 0.0 if is_at_cap else errors.abs().max()
        assert exact.nats_by < 12.0 * largest + 1e-8


@pytest.mark.parametrize("kind", KINDS)
def test_log_ratios_before_they_are_clipped_give_the_distribution_of_the_reference(kind):
    rows = KINDS[kind].clone()
    rows[0, 5], rows[1, 6] = -math.inf, -math.inf
    safe, risky = rows[:1], rows[1:]
    for budget in (1e-6, 0.3, 40.0, 1000.0):
        nats = torch.tensor([budget], dtype=torch.float64)
        scale = reference.project_max(risky, safe, nats).nan_to_num(math.inf)
        expected = reference.clipped_log_probs(risky, safe, nats, scale)[0]
        ratios = unclipped_ratios(risky[0], safe[0], budget)
        star = reference.log_softmax(safe)[0] + ratios.clamp(max=budget)
        assert torch.equal(star == -math.inf, expected == -math.inf)
        assert star.exp().sub(expected.exp()).abs().max() < 1e-12
        assert (scale.item() == math.inf) == (ratios == math.inf).any()


def test_a_token_is_the_seeds_if_one_tolerance_moves_the_distributions_so_that_it_is():
    step, needed = honest_step(random_pair(0), 1.0), []
    for number in range(40):
        moved = check_step(replace(step, uniform=(0.1 + 0.02 * number, 0.1, 0.1)))
        assert moved.failures == ["the seed gives another token"] * (moved.rounding > 1.0)
        needed.append(moved.rounding)
    assert any(0.0 < by <= 1.0 for by in needed) and any(1.0 < by < 10.0 for by in needed)


def test_who_draws_gets_tokens_that_noise_made_likelier():
    """On average a cost is above its replay by half the variance of the difference."""
    rows, (noise, uniforms) = random_pair(0), noises(3, 2.0, 150)
    drawn = solved(rows + noise, 100.0, "drawn", uniforms)
    honest = honest_step(rows, 100.0, "drawn", by=2.0)
    tokens = drawn.token_ids.tolist()
    steps = {token_id: with_record(honest, token_id=token_id) for token_id in set(tokens)}
    nats = torch.tensor([[steps[token].nats, steps[token].slack] for token in tokens])
    mean, allowed = (drawn.spend - nats[:, 0]).mean(), nats[:, 1].mean()
    assert 0.1 < mean < allowed < 4.0 * mean


@pytest.mark.parametrize("number", [2, 31])
def test_errors_of_the_token_alone_take_it_below_its_cap(number):
    """The token nearest to its cap, of a row of which little else is free."""
    rows, budget, tolerance = random_pair(number), 0.01, 0.5
    ratios = unclipped_ratios(rows[1], rows[0], budget)
    token_id = int(torch.where(ratios > budget, ratios, math.inf).argmin())
    noisy = rows.clone()
    noisy[1, token_id] -= 3.5 * tolerance / NUM_DEVIATIONS
    cost = token_spend(solved(noisy[None], budget, "drawn"), torch.tensor([token_id]))
    step = with_record(honest_step(rows, budget, "drawn", by=tolerance), token_id=token_id)
    error = step.nats - cost.item()
    assert 0.01 < error < step.nats_by < 12.0 * error


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
    record = recorded_step(nearly_all(recorded_mass), 5.0, "drawn", uniform)
    rows = nearly_all(replayed_mass)
    step = honest_step(rows, 5.0, "drawn", uniform, by=tolerance, record=record)
    assert record.token_id == token_id and (failed(step) == []) == is_explained


def test_a_solver_may_miss_c_where_little_is_free():
    rows = torch.tensor([[0.0, 0.0], [30.0, 0.0]], dtype=torch.float64)
    for left in (1e-3, 1e-7):
        exact = honest_step(rows, math.log(2.0) - left, "drawn", (0.7, 0.0, 0.5), by=1e-12)
        assert exact.recorded.token_id == 1 and failed(exact) == []
        cost = exact.recorded.spend - 1e-8 / left
        assert failed(with_record(exact, spend=cost, log_prob=cost + exact.recorded.safe_log_prob))


def test_a_cost_is_the_difference_of_the_two_figures_next_to_it():
    step = honest_step(random_pair(4), 5.0, "drawn")
    for by, figures in ((2e-7, ["cost of the token"]), (1e-8, [])):
        assert failed(with_record(step, log_prob=step.recorded.log_prob - by)) == figures


def test_a_spend_is_above_its_divergence_by_a_few_of_a_solvers_margins():
    """Of logits of 10,000 nats the margin for rounding is all that counts."""
    step = honest_step(1e4 * random_pair(1), 0.5, by=1e-12)
    margin = step.recorded.spend - step.nats
    assert margin > 1e-6
    for times, figures in ((6.0, []), (100.0, ["spend", "spend by the rule"])):
        spend = step.nats + times * margin
        names = failed(with_record(step, spend=spend, budget=step.recorded.budget + spend))
        assert [name for name in names if name != "budget left"] == figures


def test_a_budget_that_binds_is_spent_but_for_a_solvers_fraction():
    step = honest_step(random_pair(1), 3.0)
    for more, figures in ((0.0, []), (1e-3, ["budget left"])):
        assert failed(with_record(step, budget=step.recorded.budget + more)) == figures


@pytest.mark.parametrize(("raised", "is_explained"), [(0.01, True), (0.5, False)])
def test_rounding_may_decide_whether_a_budget_pays_for_the_common_support(raised, is_explained):
    # Recorded: mass 2/3 is shared, which costs log 1.5. Replayed: it costs a little more.
    risky, budget = [0.0, 0.0, -math.inf], math.log(1.5) + 1e-4
    record = recorded_step(torch.tensor([[0.0] * 3, risky]).double(), budget)
    step = honest_step(torch.tensor([[0.0, 0.0, raised], risky]).double(), budget, record=record)
    assert record.spend > 0.0 == step.drawn.spend
    assert (failed(step) == []) == is_explained


@pytest.mark.parametrize(("left", "is_explained"), [(1e-3, True), (5.0, False)])
def test_rounding_may_decide_whether_a_budget_pays_for_the_whole_risky_model(left, is_explained):
    whole = honest_step(random_pair(4), 20.0)
    step = with_record(whole, budget=whole.recorded.spend + left)
    nothing = solved(random_pair(4)[None], 0.0)
    assert whole.recorded.weight == 1.0
    assert (failed(replace(step, drawn=nothing)) == []) == is_explained


def supports(probs: list[float], tolerance: float, **sampling) -> tuple[set, list[set]]:
    """The symbols that are kept, and those of the other supports."""
    config = SamplingConfig(temperature=1.0, repetition_penalty=1.0, **sampling)
    logits = torch.tensor([probs], dtype=torch.float64).log()

    def warp(settings: SamplingConfig) -> Tensor:
        return Warpers(settings, [4])(logits, torch.zeros(1, 5, dtype=torch.bool))[0]

    def kept(row: Tensor) -> set:
        return set((row > -math.inf).nonzero()[:, 0].tolist())

    rows = other_supports({"safe": warp}, config, {"safe": tolerance})
    return kept(warp(config)), [kept(row["safe"]) for row in rows]


@pytest.mark.parametrize(
    ("sampling", "symbols"),
    [({"top_k": 2}, {1, 2}), ({"top_p": 0.9}, {3}), ({"min_p": 0.12}, {3}), ({"top_k": 1}, set())],
    ids=str,
)
def test_symbols_at_the_edge_of_a_truncation_may_be_on_either_side(sampling, symbols):
    # The first three have nearly 0.9, the fourth is 0.12 times the largest.
    kept, others = supports([0.5, 0.2, 0.199, 0.06, 0.041], 0.01, **sampling)
    changes = [kept ^ other for other in others]
    assert {symbol for change in changes if len(change) == 1 for symbol in change} == symbols


@pytest.mark.parametrize("sampling", [{"top_k": 2}, {"top_p": 0.65}, {"top_p": 0.8}])
def test_two_symbols_that_are_nearly_alike_may_change_sides_of_a_cut(sampling):
    """A top-k and a top-p keep so many symbols, and rounding decides which of two is the last."""
    kept, others = supports([0.5, 0.2001, 0.2, 0.06, 0.0399], 0.001, **sampling)
    assert ({0, 2} in others) == (kept == {0, 1})


@pytest.mark.parametrize(
    ("errors", "steps"),
    [
        ([0.45] * 4, ""),
        ([0.625] * 4, "divergence 3.0 nats in steps 0 to 2, spent 1.125"),
        # What is too much before or after does not make up for what is missing.
        ([-3.0] + [0.625] * 3, "in steps 1 to 3, spent 1.125"),
        ([0.625] * 3 + [-3.0], "in steps 0 to 2, spent 1.125"),
        ([0.9, -0.9, 0.9, -0.9], ""),
        ([0.0, 1.1, -2.0], "in steps 1 to 1, spent -0.1"),
        # More than the replay says is harmless, up to the slack.
        ([-1.9] * 4, ""),
        ([-2.1] * 4, "divergence 4.0 nats, spent 12.4"),
        ([math.nan], "divergence 1.0 nats in steps 0 to 0, spent nan"),
    ],
)
def test_no_run_of_steps_spent_less_than_rounding_explains(errors, steps):
    spends = [1.0 - error for error in errors]
    step = SimpleNamespace(nats=1.0, nats_by=1.0, slack=1.5)
    failure = sums_apart(spends, [step] * len(spends))
    assert steps in failure and bool(failure) == bool(steps)
