"""Checks of the projection and walk kernels that need a device to mean anything."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from anchored.kernels import reference
from anchored.kernels.accounts import new_accounts
from anchored.kernels.gpu.launch import project_into
from anchored.kernels.law import Projection
from anchored.kernels.projection import project_kl, project_max
from anchored.kernels.spend import SPEND_QUANTUM
from anchored.kernels.uniforms import uniforms
from anchored.kernels.walk import Walk, walk, walk_memory
from anchored.kernels.warping import Stops, Warping

from .check import Check, RunCheck, Sizes, logit_cases

REFERENCE_ERROR = 1e-12
"""Nats; rounding of the float64 reference."""


def feasible(project: Callable[..., Projection], device: torch.device, sizes: Sizes) -> Check:
    """True divergence <= spend <= budget in every row, and the shortfall where it is promised."""
    worst, shortfall, num_rows = -math.inf, 0.0, 0
    is_on_grid = True
    for shape in sizes.shapes:
        for name, risky, safe in logit_cases(shape, device, seed=shape[1]):
            budget = _budgets(shape[0], device)
            projection = project(risky, safe, budget, backend="triton")
            divergence = _divergence(project, projection, risky, safe)
            over = torch.maximum(divergence - projection.spend, projection.spend - budget)
            worst, num_rows = max(worst, over.max().item()), num_rows + shape[0]
            is_on_grid &= bool((projection.spend / SPEND_QUANTUM).frac().eq(0).all())
            if name != "huge":
                binds = (projection.weight < 1.0) & ~projection.is_safe_only
                allowed = torch.clamp(1e-5 * budget, min=1e-7)
                missing = torch.where(binds, (budget - divergence) / allowed, 0.0)
                shortfall = max(shortfall, missing.max().item())
    return Check(
        passed=worst <= REFERENCE_ERROR and shortfall <= 1.0 and is_on_grid,
        detail=f"{num_rows} rows, overspend {worst:.1e} nats, shortfall {shortfall:.2f} of allowed",
    )


def same_draws(project: Callable[..., Projection], device: torch.device, sizes: Sizes) -> Check:
    """The torch backend's token for the same uniforms; a boundary of a CDF may round otherwise."""
    num_rows, num_different = 0, 0
    for shape in sizes.shapes:
        for name, risky, safe in logit_cases(shape, device, seed=shape[1] + 50):
            if name == "huge":  # there the weights may differ
                continue
            budget, rows = _budgets(shape[0], device), torch.arange(shape[0])
            uniform = uniforms(rows, rows).to(device)
            ours = project(risky, safe, budget, uniform, backend="triton")
            theirs = project(risky, safe, budget, uniform, backend="torch")
            assert ours.token_ids is not None and theirs.token_ids is not None
            num_different += int((ours.token_ids != theirs.token_ids).sum())
            num_rows += shape[0]
    # The two budgets' use may differ by 1e-5, and so may the probability of another token.
    return Check(
        passed=num_different <= max(1, num_rows // 1000),
        detail=f"{num_different} of {num_rows} tokens differ",
    )


def law_of_tokens(device: torch.device, sizes: Sizes) -> Check:
    """Chi-square of many draws from one law of 257 symbols; false alarm once in a million."""
    num_draws = sizes.num_draws
    _, risky, safe = next(logit_cases((1, 257), device, seed=7))
    rows = (num_draws, 257)
    uniform = uniforms(torch.full((num_draws,), 5), torch.arange(num_draws)).to(device)
    budget = torch.full((num_draws,), 0.05, dtype=torch.float64, device=device)
    drawn = project_kl(risky.expand(rows), safe.expand(rows), budget, uniform, backend="triton")
    one = project_kl(risky, safe, budget[:1], backend="triton")
    expected = num_draws * one.log_probs()[0].double().exp()
    assert drawn.token_ids is not None
    counts = torch.bincount(drawn.token_ids, minlength=257).double()
    is_common = expected >= 5.0
    rest = [x[~is_common].sum()[None] for x in (counts, expected)]
    counts = torch.cat([counts[is_common], rest[0]])
    expected = torch.cat([expected[is_common], rest[1]])
    statistic = ((counts - expected) ** 2 / expected.clamp_min(1e-9)).sum().item()
    degrees = max(1, len(expected) - 1)
    spread = 2.0 / (9.0 * degrees)  # Wilson and Hilferty 1931
    limit = degrees * (1.0 - spread + 4.75 * math.sqrt(spread)) ** 3
    return Check(
        passed=statistic < limit,
        detail=f"{num_draws} draws, chi-square {statistic:.1f} on {degrees}, limit {limit:.1f}",
    )


def batch_invariant(device: torch.device, sizes: Sizes) -> Check:
    """A row gives the same bits alone, where many programs share it, and in a batch."""
    shape = sizes.batch_shape
    _, risky, safe = next(logit_cases(shape, device, seed=11))
    rows = torch.arange(shape[0])
    budget, uniform = _budgets(shape[0], device), uniforms(rows, rows).to(device)
    whole = project_kl(risky, safe, budget, uniform, backend="triton")
    num_equal = 0
    for row in range(shape[0]):
        one = slice(row, row + 1)
        alone = project_kl(risky[one], safe[one], budget[one], uniform[one], backend="triton")
        assert alone.token_ids is not None and whole.token_ids is not None
        num_equal += int(
            torch.equal(alone.spend, whole.spend[one])
            and torch.equal(alone.weight, whole.weight[one])
            and torch.equal(alone.token_ids, whole.token_ids[one])
        )
    return Check(
        passed=num_equal == shape[0],
        detail=f"{num_equal} of {shape[0]} rows equal bit for bit",
    )


def extreme_sizes(device: torch.device, sizes: Sizes) -> Check:
    """B from 1 to 70,000, more than a grid has in its second dimension, and V from 1 to 262,144,
    with odd strides."""
    worst = -math.inf
    for num_rows, vocab_size in sizes.extreme_shapes:
        wide = torch.randn(num_rows, vocab_size + 3, device=device, dtype=torch.bfloat16)
        risky, safe = 3.0 * wide[:, 1:-2], wide[:, 2:-1]
        budget = torch.full((num_rows,), 0.2, dtype=torch.float64, device=device)
        projection = project_kl(risky, safe, budget, backend="triton")
        divergence = _divergence(project_kl, projection, risky, safe)
        over = torch.maximum(divergence - projection.spend, projection.spend - budget)
        worst = max(worst, over.max().item())
    return Check(
        passed=worst <= REFERENCE_ERROR,
        detail=f"{len(sizes.extreme_shapes)} sizes, overspend {worst:.1e} nats",
    )


def walk_is_plain(device: torch.device, sizes: Sizes) -> Check:
    """Drafted rows in one launch give the tokens and the account of one row a launch."""
    num_requests, num_positions, vocab_size = sizes.walk_shape
    shape = (num_requests * num_positions, vocab_size)
    _, risky, safe = next(logit_cases(shape, device, seed=13))
    risky, safe = (x.view(num_requests, num_positions, vocab_size) for x in (risky, safe))
    plain_account, account = _accounts(num_requests, device), _accounts(num_requests, device)
    seeds = torch.arange(num_requests, device=device)
    no_drafts = torch.zeros(num_requests, 0, dtype=torch.int64, device=device)
    one_row = walk_memory(num_requests, 1, vocab_size, device)
    tokens = []
    for step in range(num_positions):
        row = slice(step, step + 1)
        step_walk = walk(
            risky[:, row],
            safe[:, row],
            accounts=plain_account,
            uniform=seeds,
            drafts=no_drafts,
            memory=one_row,
        )
        tokens.append(step_walk.token_ids.clone())
    plain = torch.cat(tokens, dim=1)
    result = walk(
        risky,
        safe,
        accounts=account,
        uniform=seeds,
        drafts=plain[:, :-1].contiguous(),
        memory=walk_memory(num_requests, num_positions, vocab_size, device),
    )
    is_same = torch.equal(result.token_ids, plain) and torch.equal(account, plain_account)
    return Check(
        passed=is_same,
        detail=f"{num_requests} requests of {num_positions} rows",
    )


def warping(device: torch.device, sizes: Sizes) -> Check:
    """A walk of raw logits decides what a walk of warped ones does, within the shortfall."""
    _, risky, safe = next(logit_cases(sizes.warped_shape, device, seed=17))
    num_rows, vocab_size = risky.shape
    how = Warping(
        temperature=torch.full((num_rows,), 0.7, device=device),
        penalty=torch.full((num_rows,), 1.1, device=device),
        seen=torch.rand(risky[:, None].shape, device=device) < 0.3,
        stops=Stops.of((1, vocab_size - 1), vocab_size, device),
    )
    risky, safe = risky[:, None], safe[:, None]
    raw = _one_row(risky, safe, how)
    warped = _one_row(how.warped(risky), how.warped(safe), None)
    num_equal = int((raw.token_ids == warped.token_ids).sum())
    error = (raw.spend - warped.spend).abs().max().item()
    # Float32 of the warped logits may move a token at a boundary of the sampler.
    return Check(
        passed=num_equal >= num_rows - max(1, num_rows // 1000) and error <= 1e-4,
        detail=f"{num_equal} of {num_rows} tokens equal, spends within {error:.1e} nats",
    )


def _one_row(risky: Tensor, safe: Tensor, how: Warping | None) -> Walk:
    """A row of each request, drawn by seeds, in memory of its own; logits (B, 1, V)."""
    num_requests, device = len(safe), safe.device
    return walk(
        risky,
        safe,
        accounts=_accounts(num_requests, device),
        uniform=torch.arange(num_requests, device=device),
        drafts=torch.zeros(num_requests, 0, dtype=torch.int64, device=device),
        warping=how,
        backend="triton",
    )


def replays(device: torch.device, sizes: Sizes) -> Check:
    """A captured launch, replayed with other budgets, equals the launch itself and never hangs."""
    num_rows, vocab_size = sizes.replayed_shape
    _, risky, safe = next(logit_cases(sizes.replayed_shape, device, seed=19))
    rows = torch.arange(num_rows)
    uniform = uniforms(rows, rows).to(device)
    budget = torch.zeros(num_rows, dtype=torch.float64, device=device)
    memory = walk_memory(num_rows, 1, vocab_size, device)
    assert memory is not None

    def launch() -> Projection:
        return project_into(memory, risky, safe, budget, uniform, is_max=False)

    launch()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        projection = launch()
    num_equal, trials = 0, (0.0, 0.01, 0.3, 2.0)
    for index in range(sizes.num_replays):
        budget.fill_(trials[index % len(trials)])
        graph.replay()
    for trial in trials:
        budget.fill_(trial)
        graph.replay()
        replayed = projection.spend.clone()
        num_equal += int(torch.equal(replayed, launch().spend))
    return Check(
        passed=num_equal == len(trials),
        detail=f"{sizes.num_replays} replays, {num_equal} of {len(trials)} budgets bit for bit",
    )


def _budgets(num_rows: int, device: torch.device) -> Tensor:
    exponents = torch.linspace(math.log(1e-6), math.log(50.0), num_rows, dtype=torch.float64)
    budget = exponents.exp()
    budget[::7] = 0.0
    return budget.to(device)


def _accounts(num_requests: int, device: torch.device) -> Tensor:
    rates, bounds, debts = ([value] * num_requests for value in (0.3, 1.0, 0.1))
    return new_accounts(rates, bounds, debts, "adaptive", device)


def _divergence(
    project: Callable[..., Projection], projection: Projection, risky: Tensor, safe: Tensor
) -> Tensor:
    """(B,) float64 divergence from p_s of the law at the weight returned, on the device."""
    forced = projection.is_safe_only
    if project is project_kl:
        tilted = reference.tilted_log_probs(risky, safe, projection.weight)
        log_probs = torch.where(forced[:, None], reference.log_softmax(safe), tilted)
        return reference.kl_divergence(log_probs, safe)
    law = projection.law
    is_shared = (risky > -math.inf) & (safe > -math.inf)
    tilt = torch.where(is_shared, risky.double() - safe.double(), 0.0) / math.log(2.0)
    tilt = tilt - (law.risky_peak - law.safe_peak)[:, None] / math.log(2.0)
    ratio = torch.minimum(tilt + law.offset[:, None], law.ceiling[:, None])
    largest = torch.where(is_shared, ratio, -math.inf).amax(-1) * math.log(2.0)
    return torch.where(forced, 0.0, largest)


CHECKS: dict[str, RunCheck] = {
    "KL projection keeps its bound": partial(feasible, project_kl),
    "order-infinity projection keeps its bound": partial(feasible, project_max),
    "KL projection draws the torch backend's tokens": partial(same_draws, project_kl),
    "order-infinity projection draws them too": partial(same_draws, project_max),
    "tokens follow the law returned": law_of_tokens,
    "results do not depend on the batch": batch_invariant,
    "largest and smallest sizes": extreme_sizes,
    "a walk is plain decoding": walk_is_plain,
    "a walk warps raw logits": warping,
    "a CUDA graph replays the launch": replays,
}
