"""The walk: the same decisions and spends as one call a step, up to the first rejection."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from anchored.decode.rules.budget import Budget
from anchored.kernels.projection import project_kl, project_max
from anchored.kernels.sampler import uniforms
from anchored.kernels.spend import SPENT, STEP, new_accounts
from anchored.kernels.walk import walk

# Lanes whose results are discarded divide by zero, and numpy, the interpreter's engine, says so.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NUM_REQUESTS, NUM_POSITIONS = 3, 3
PER_STEP, TOTAL, DEBT = 0.3, 0.6, 0.1
SEEDS = torch.arange(NUM_REQUESTS) + 11


@pytest.fixture(params=["torch", pytest.param("triton", marks=pytest.mark.slow)])
def backend(request):
    """Which of them walks."""
    return request.param


@dataclass(frozen=True)
class Plain:
    """Decoding one token a call."""

    token_ids: Tensor
    spends: Tensor
    budgets: Tensor
    log_probs: Tensor


def accounts(schedule):
    columns = [[value] * NUM_REQUESTS for value in (PER_STEP, TOTAL, DEBT)]
    return new_accounts(*columns, schedule, DEVICE)


def pairs(logit_pairs, vocab_size, seed, kind="generic"):
    generator = torch.Generator().manual_seed(seed)
    rows = NUM_REQUESTS * NUM_POSITIONS
    shape = (NUM_REQUESTS, NUM_POSITIONS, vocab_size)
    return [x.view(shape).to(DEVICE) for x in logit_pairs(kind, rows, vocab_size, generator)]


def plain_decoding(risky, safe, schedule, *, backend, divergence="kl"):
    project = project_kl if divergence == "kl" else project_max
    budget = Budget(
        per_step=PER_STEP, total=TOTAL, horizon=NUM_POSITIONS, debt=DEBT, schedule=schedule
    )
    spent, steps = [0.0] * NUM_REQUESTS, []
    for step in range(NUM_POSITIONS):
        allowed = torch.tensor([budget.allowance(step, nats) for nats in spent], dtype=torch.double)
        uniform = uniforms(SEEDS, torch.full((NUM_REQUESTS,), step))
        drawn = project(
            risky[:, step], safe[:, step], allowed.to(DEVICE), uniform.to(DEVICE), backend=backend
        )
        log_probs = drawn.token_log_probs(drawn.token_ids)
        steps.append((drawn.token_ids, drawn.spend, allowed.to(DEVICE), log_probs))
        spent = [nats + more for nats, more in zip(spent, drawn.spend.tolist(), strict=True)]
    return Plain(*(torch.stack(column, dim=1) for column in zip(*steps, strict=True)))


def check_reached_rows(result, plain):
    reached = result.was_reached
    assert torch.equal(result.token_ids[reached], plain.token_ids[reached])
    assert torch.equal(result.spend[reached], plain.spends[reached])
    assert torch.equal(result.budget[reached], plain.budgets[reached])
    error = (result.log_probs - plain.log_probs)[reached].abs()
    assert error.max() < 1e-12


@pytest.mark.parametrize(
    ("schedule", "divergence"),
    [("adaptive", "kl"), ("adaptive", "max"), ("global", "kl"), ("fixed", "kl")],
)
def test_a_walk_is_plain_decoding_up_to_the_first_rejection(
    schedule, divergence, logit_pairs, backend
):
    risky, safe = pairs(logit_pairs, 60, 1)
    plain = plain_decoding(risky, safe, schedule, divergence=divergence, backend=backend)
    drafts = plain.token_ids[:, :-1].clone()
    drafts[1, 1] = (drafts[1, 1] + 1) % 60
    drafts[2, 0] = -1
    account = accounts(schedule)
    result = walk(
        risky,
        safe,
        accounts=account,
        seeds=SEEDS.to(DEVICE),
        drafts=drafts,
        divergence=divergence,
        backend=backend,
    )
    assert result.was_reached.tolist() == [[True] * 3, [True, True, False], [True, False, False]]
    check_reached_rows(result, plain)
    spent = torch.where(result.was_reached, plain.spends, 0.0).sum(1)
    assert torch.equal(account[:, SPENT], spent)
    assert account[:, STEP].tolist() == [3.0, 2.0, 1.0]


def test_an_invalid_row_ends_its_walk_and_is_not_committed(logit_pairs, backend):
    risky, safe = pairs(logit_pairs, 40, 6)
    plain = plain_decoding(risky, safe, "adaptive", backend=backend)
    risky[1, 1, 3], risky[2, 2, 0] = math.nan, math.nan
    account = accounts("adaptive")
    drafts = plain.token_ids[:, :-1].clone()
    drafts[2, 1] = -1  # what lies behind a rejection is never read
    result = walk(
        risky,
        safe,
        accounts=account,
        seeds=SEEDS.to(DEVICE),
        drafts=drafts,
        backend=backend,
    )
    assert result.was_reached.tolist() == [[True] * 3, [True, True, False], [True, True, False]]
    assert result.is_valid[1].tolist()[:2] == [True, False]
    assert result.token_ids[1, 1] == -1
    assert account[:, STEP].tolist() == [3.0, 1.0, 2.0]
    assert account[1, SPENT] == plain.spends[1, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drafts": torch.zeros(3, 3, dtype=torch.int64)}, r"drafts must be \(3, 2\) torch.int64"),
        ({"seeds": torch.zeros(3, 3, 3)}, r"seeds must be \(3,\) torch.int64"),
        ({"accounts": torch.zeros(3, 5).double()}, r"accounts must be \(3, 6\) torch.float64"),
        ({"risky_logits": torch.zeros(3, 3, 8)}, r"must both be \(B, G, V\), got \(3, 3, 8\)"),
        ({"risky_logits": torch.zeros(3, 3, 7).long()}, "risky_logits must be of a float dtype"),
        ({"divergence": "tv"}, "divergence must be 'kl' or 'max', got 'tv'"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    arguments = {
        "risky_logits": torch.zeros(3, 3, 7, device=DEVICE),
        "safe_logits": torch.zeros(3, 3, 7, device=DEVICE),
        "accounts": accounts("adaptive"),
        "seeds": SEEDS.to(DEVICE),
        "drafts": torch.zeros(3, 2, dtype=torch.int64, device=DEVICE),
    } | {name: x.to(DEVICE) if torch.is_tensor(x) else x for name, x in change.items()}
    risky, safe = arguments.pop("risky_logits"), arguments.pop("safe_logits")
    with pytest.raises(ValueError, match=message):
        walk(risky, safe, **arguments)
    with pytest.raises(ValueError, match="schedule must be one of adaptive, global, fixed"):
        accounts("weekly")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("divergence", ["kl", "max"])
@pytest.mark.parametrize("kind", ["generic", "masked_both", "memorised"])
def test_both_backends_walk_alike(kind, divergence, logit_pairs):
    risky, safe = pairs(logit_pairs, 130, 7, kind)
    risky[2, 1, 5] = math.nan
    account = accounts("fixed")  # a rest of the budget would be of their tolerances
    draws = {"seeds": SEEDS.to(DEVICE), "divergence": divergence}
    ahead = torch.full((NUM_REQUESTS, NUM_POSITIONS - 1), -1, device=DEVICE)
    for position in range(NUM_POSITIONS - 1):  # what is drawn, known one position further
        result = walk(risky, safe, accounts=account.clone(), drafts=ahead, backend="torch", **draws)
        ahead[:, position] = result.token_ids[:, position]
    ahead[0, 1] = (ahead[0, 1] + 1) % 130
    ends = {backend: account.clone() for backend in ("torch", "triton")}
    drawn = [
        walk(risky, safe, accounts=x, drafts=ahead, backend=b, **draws) for b, x in ends.items()
    ]
    check_same(*drawn)
    torch.testing.assert_close(ends["torch"], ends["triton"], rtol=0, atol=1e-5)


def check_same(by_torch, by_triton):
    reached = by_torch.was_reached
    assert torch.equal(reached, by_triton.was_reached) and not reached.all()
    for name in ("is_valid", "is_safe_only", "token_ids"):
        assert torch.equal(getattr(by_torch, name)[reached], getattr(by_triton, name)[reached])
    for name in ("weight", "spend", "budget", "log_probs", "safe_log_probs"):
        values = [getattr(x, name)[reached] for x in (by_torch, by_triton)]
        # Solvers may stop anywhere within their tolerance of the budget, 1e-5 of it.
        torch.testing.assert_close(*values, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_a_greedy_walk_takes_the_likeliest_token_of_each_law(logit_pairs, backend):
    risky, safe = pairs(logit_pairs, 50, 8)
    account = accounts("adaptive")
    options = {"seeds": None, "backend": backend}
    blind = torch.full((NUM_REQUESTS, NUM_POSITIONS - 1), -1, device=DEVICE)
    first = walk(risky, safe, accounts=account.clone(), drafts=blind, **options)
    assert first.was_reached.tolist() == [[True, False, False]] * NUM_REQUESTS
    drafts = blind.clone()
    drafts[:, 0] = first.token_ids[:, 0]
    result = walk(risky, safe, accounts=account, drafts=drafts, **options)
    assert account[:, STEP].tolist() == [2.0] * NUM_REQUESTS
    for place in range(2):
        law = project_kl(risky[:, place], safe[:, place], result.budget[:, place], backend=backend)
        assert torch.equal(result.token_ids[:, place], law.log_probs().argmax(-1))
        assert torch.equal(result.spend[:, place], law.spend)
