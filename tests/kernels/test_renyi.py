"""Projections of Rényi orders: the bound against many digits and float64, and laws over orders."""

import itertools
import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from logit_kinds import (
    FEW_SIZES,
    KINDS,
    ORDERS,
    SIZES,
    random_budgets,
    random_logits,
    row_orders,
    star_log_probs,
)

from anchored.kernels import reference
from anchored.kernels.project import project_kl, project_renyi
from anchored.kernels.spend import BAN_GAP, SPEND_QUANTUM

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

REFERENCE_ERROR = 1e-11
"""Nats, and as much of each nat that the powers of order 64 span: what float64 leaves open."""

ORACLE_ERROR = 1e-50
"""Nats; rounding of 60 digits."""

EXTREMES = (0.0, 1e-8, 0.5, -1.0, 3.0, -30.0, 100.0, -700.0, 1e4, -1e6, 1e8, -1e8, -1e9, -math.inf)
"""Logits of rows within everything that numbers and masks hold."""


def exact_log_probs(logits: list[float]) -> list[mpmath.mpf]:
    """log softmax to 60 digits; -inf where banned."""
    numbers = [mpmath.mpf(x) for x in logits]
    top = max(numbers)
    kept = [x - top if x - top >= -BAN_GAP else mpmath.mpf("-inf") for x in numbers]
    log_total = mpmath.log(mpmath.fsum(mpmath.exp(x) for x in kept))
    return [x - log_total for x in kept]


def exact_divergence(risky: list[float], safe: list[float], weight: float, order: float):
    """D of p_s^(1 - w) p_r^w, on the tokens that both allow, from p_s, to 60 digits."""
    with mpmath.workdps(60):
        w, a = mpmath.mpf(weight), mpmath.mpf(order)
        pairs = [(s, r) for s, r in zip(exact_log_probs(safe), exact_log_probs(risky), strict=True)]
        shared = [(s, (1 - w) * s + w * r) for s, r in pairs if mpmath.isfinite(s + r)]
        log_total = mpmath.log(mpmath.fsum(mpmath.exp(x) for _, x in shared))
        powers = [mpmath.exp(a * (x - log_total) + (1 - a) * s) for s, x in shared]
        return mpmath.log(mpmath.fsum(powers)) / (a - 1)


def extreme_rows(generator: torch.Generator, num_rows: int, vocab_size: int) -> torch.Tensor:
    picks = torch.randint(len(EXTREMES), (num_rows, vocab_size), generator=generator)
    logits = torch.tensor(EXTREMES)[picks]
    # Every row allows a token.
    return torch.where((logits == -math.inf).all(1, keepdim=True), 0.0, logits)


@pytest.mark.parametrize("num_rows", [60, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("order", ORDERS)
def test_no_extreme_row_overspends_to_many_digits(order, num_rows):
    generator = torch.Generator().manual_seed(int(10 * order))
    for vocab_size, dtype in ((2, torch.float32), (3, torch.bfloat16), (5, torch.float32)):
        risky, safe = (extreme_rows(generator, num_rows, vocab_size).to(dtype) for _ in range(2))
        nats = 10.0 ** (16.0 * torch.rand(num_rows, generator=generator, dtype=torch.float64) - 12)
        projection = project_renyi(risky, safe, nats, order=order)
        assert bool((projection.spend <= nats).all())
        assert bool((projection.spend / SPEND_QUANTUM).frac().eq(0.0).all())
        assert projection.weight.min() >= 0.0 and projection.weight.max() <= 1.0
        for row, weight in enumerate(projection.weight.tolist()):
            if projection.is_safe_only[row]:
                assert projection.spend[row] == 0.0
                continue
            case = risky[row].tolist(), safe[row].tolist(), weight, order
            assert exact_divergence(*case) <= projection.spend[row].item() + ORACLE_ERROR, case


@pytest.mark.parametrize("sizes", [FEW_SIZES, pytest.param(SIZES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_random_cases_keep_the_bound_and_the_accuracy(kind, sizes):
    generator = torch.Generator().manual_seed(KINDS.index(kind))
    for vocab_size, num_rows in sizes:
        for dtype in (torch.bfloat16, torch.float32):
            risky, safe = (
                x.to(dtype) for x in random_logits(kind, num_rows, vocab_size, generator)
            )
            budget, orders = random_budgets(num_rows, generator), row_orders(num_rows)
            projection = project_renyi(risky, safe, budget, order=orders)
            tilted = star_log_probs(projection, risky, safe)
            nats = reference.renyi_divergence(tilted, safe, order=orders)
            nats = torch.where(projection.is_safe_only, 0.0, nats)
            reach = 64.0 * (risky.double() - safe.double()).nan_to_num(0.0, 0.0, 0.0).abs().amax(1)
            assert bool((nats <= projection.spend + REFERENCE_ERROR + 1e-15 * reach).all())
            assert bool((projection.spend <= budget).all())
            is_forced = (budget <= 0.0) | (reference.support_floor(risky, safe) > budget)
            assert torch.equal(projection.is_safe_only, is_forced)
            if kind == "huge":  # a shortfall is promised of logits within +-100
                continue
            binds = (projection.weight < 1.0) & ~projection.is_safe_only
            allowed = torch.clamp(1e-5 * budget, min=1e-7)
            assert bool((budget - nats <= allowed)[binds].all())
            assert (projection.log_probs().double() - tilted)[tilted > -18.0].abs().max() <= 1e-5


@pytest.mark.parametrize("order", ORDERS)
def test_the_risky_law_is_returned_exactly_where_the_budget_buys_it(order):
    risky, safe = random_logits("masked_risky", 8, 90, torch.Generator().manual_seed(3))
    ones = torch.ones(8, dtype=torch.float64)
    full = reference.tilted_log_probs(risky, safe, ones)
    nats = reference.renyi_divergence(full, safe, order=order)
    # The search may end 1e-5 of a budget below it, so a budget has to be that much more to tell.
    assert project_renyi(risky, safe, nats * (1.0 + 1e-5) + 1e-7, order=order).weight.eq(1.0).all()
    below = project_renyi(risky, safe, nats * (1.0 - 1e-9), order=order)
    assert bool((below.weight < 1.0).all())
    floor = reference.support_floor(risky, safe)
    assert project_renyi(risky, safe, floor - 1e-6, order=order).is_safe_only.all()
    assert not project_renyi(risky, safe, floor + 1e-6, order=order).is_safe_only.any()


@given(
    kind=st.sampled_from([kind for kind in KINDS if kind != "huge"]),
    vocab_size=st.sampled_from([1, 2, 7, 65, 300]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=20)
def test_a_larger_order_has_less_weight_and_all_have_less_than_kl(kind, vocab_size, seed):
    generator = torch.Generator().manual_seed(seed)
    risky, safe = random_logits(kind, 6, vocab_size, generator)
    # Where less is left, the shortfall that each may have hides the order.
    budget = random_budgets(6, generator).clamp_min(1e-4)
    projections = [project_kl(risky, safe, budget)]
    projections += [project_renyi(risky, safe, budget, order=order) for order in ORDERS]
    for larger, smaller in itertools.pairwise(projections):
        assert torch.equal(larger.is_safe_only, smaller.is_safe_only)
        assert bool((smaller.weight <= larger.weight * (1.0 + 2e-3)).all())


def test_rows_of_several_orders_have_the_digits_of_each_alone():
    risky, safe = random_logits("generic", 6, 5000, torch.Generator().manual_seed(4))
    budget = torch.full((6,), 0.3, dtype=torch.float64)
    batch = project_renyi(risky, safe, budget, order=row_orders(6))
    for row, order in enumerate(ORDERS):
        one = slice(row, row + 1)
        alone = project_renyi(risky[one], safe[one], budget[one], order=order)
        for name in ("weight", "spend", "offset"):
            assert torch.equal(getattr(alone, name), getattr(batch, name)[one])
    assert bool((batch.weight.diff() < 0.0).all() | (batch.weight == 1.0).any())


def test_the_definition_by_hand():
    # Of a coin: log(sum p^2 / q) at order 2; and the limits.
    star = torch.tensor([[0.75, 0.25]], dtype=torch.float64).log()
    safe = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
    nats = reference.renyi_divergence(star, safe, order=2.0).item()
    assert nats == pytest.approx(math.log(0.75**2 / 0.5 + 0.25**2 / 0.5), abs=1e-15)
    near_kl = reference.renyi_divergence(star, safe, order=1.0 + 1e-7)
    assert near_kl.item() == pytest.approx(reference.kl_divergence(star, safe).item(), abs=1e-7)
    near_max = reference.renyi_divergence(star, safe, order=1e5).item()
    assert near_max == pytest.approx(reference.max_divergence(star, safe).item(), abs=1e-4)
    off = reference.renyi_divergence(safe, torch.tensor([[0.0, -math.inf]]), order=1.5)
    assert off.item() == math.inf


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, of lanes that are discarded
def test_an_order_out_of_range_that_no_one_checked_is_the_safe_model_on_triton():
    risky, safe = random_logits("generic", 6, 90, torch.Generator().manual_seed(5))
    orders = torch.tensor([1.0, math.nan, 0.5, 64.5, math.inf, 1.5], dtype=torch.float64)
    budget = torch.ones(6, dtype=torch.float64)
    rows = [x.to(DEVICE) for x in (risky, safe, budget)]
    projection = project_renyi(*rows, order=orders.to(DEVICE), backend="triton")
    assert projection.is_safe_only.tolist() == [True] * 5 + [False]
    assert projection.spend.tolist()[:5] == [0.0] * 5


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (1.0, r"order must be in \[1.1, 64\] \(1 is project_kl, infinity project_max\), got 1.0"),
        (math.inf, "got inf"),
        (math.nan, "got nan"),
        (torch.tensor([1.5, 65.0]).double(), "got 65.0"),
        (torch.tensor([1.5]).double(), r"a number or \(2,\) float64, got \(1,\) torch.float64"),
        (torch.tensor([1.5, 1.5]), r"a number or \(2,\) float64, got \(2,\) torch.float32"),
    ],
)
def test_orders_out_of_range_are_refused(order, message):
    logits = torch.zeros(2, 5)
    with pytest.raises(ValueError, match=message):
        project_renyi(logits, logits, torch.ones(2), order=order)
