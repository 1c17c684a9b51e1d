"""The walk: the same decisions and spends as one call a step, up to the first rejection."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from anchored.decode.rules.budget import Budget
from anchored.kernels.clipping import project_max
from anchored.kernels.projection import project_kl
from anchored.kernels.triton_layout import SPENT, STEP
from anchored.kernels.triton_workspace import workspace
from anchored.kernels.uniforms import uniforms
from anchored.kernels.walk import new_accounts, score, walk

# Lanes whose results are discarded divide by zero, and numpy, the interpreter's engine, says so.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NUM_REQUESTS, NUM_POSITIONS = 3, 3
PER_STEP, TOTAL, DEBT = 0.3, 0.6, 0.1
SEEDS = torch.arange(NUM_REQUESTS) + 11


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


def memory(vocab_size, num_splits=1):
    return workspace(NUM_REQUESTS, NUM_POSITIONS, vocab_size, DEVICE, num_splits)


def pairs(logit_pairs, vocab_size, seed, kind="generic"):
    generator = torch.Generator().manual_seed(seed)
    rows = NUM_REQUESTS * NUM_POSITIONS
    shape = (NUM_REQUESTS, NUM_POSITIONS, vocab_size)
    return [x.view(shape).to(DEVICE) for x in logit_pairs(kind, rows, vocab_size, generator)]


def plain_decoding(risky, safe, schedule, divergence="kl"):
    project = project_kl if divergence == "kl" else project_max
    budget = Budget(
        per_step=PER_STEP, total=TOTAL, horizon=NUM_POSITIONS, debt=DEBT, schedule=schedule
    )
    spent, steps = [0.0] * NUM_REQUESTS, []
    for step in range(NUM_POSITIONS):
        allowed = torch.tensor([budget.allowance(step, nats) for nats in spent], dtype=torch.double)
        uniform = uniforms(SEEDS, torch.full((NUM_REQUESTS,), step))
        drawn = project(
            risky[:, step], safe[:, step], allowed.to(DEVICE), uniform.to(DEVICE), backend="triton"
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
def test_a_walk_is_plain_decoding_up_to_the_first_rejection(schedule, divergence, logit_pairs):
    risky, safe = pairs(logit_pairs, 60, 1)
    plain = plain_decoding(risky, safe, schedule, divergence)
    drafts = plain.token_ids[:, :-1].clone()
    drafts[1, 1] = (drafts[1, 1] + 1) % 60
    drafts[2, 0] = -1
    account = accounts(schedule)
    result = walk(
        risky,
        safe,
        accounts=account,
        uniform=SEEDS.to(DEVICE),
        drafts=drafts,
        memory=memory(60),
        divergence=divergence,
    )
    assert result.was_reached.tolist() == [[True] * 3, [True, True, False], [True, False, False]]
    check_reached_rows(result, plain)
    spent = torch.where(result.was_reached, plain.spends, 0.0).sum(1)
    assert torch.equal(account[:, SPENT.value], spent)
    assert account[:, STEP.value].tolist() == [3.0, 2.0, 1.0]


def test_programs_that_share_a_request_walk_it_alike(logit_pairs):
    risky, safe = pairs(logit_pairs, 1100, 2)
    plain = plain_decoding(risky, safe, "adaptive")
    drafts = plain.token_ids[:, :-1].contiguous()
    drafts[0, 0] = (drafts[0, 0] + 1) % 1100
    for num_splits in (1, 2):
        account = accounts("adaptive")
        result = walk(
            risky,
            safe,
            accounts=account,
            uniform=SEEDS.to(DEVICE),
            drafts=drafts,
            memory=memory(1100, num_splits),
        )
        check_reached_rows(result, plain)
        assert account[:, STEP.value].tolist() == [1.0, 3.0, 3.0]


def test_one_row_a_call_is_a_walk_of_many(logit_pairs):
    risky, safe = pairs(logit_pairs, 40, 3)
    plain = plain_decoding(risky, safe, "adaptive")
    account, no_drafts = accounts("adaptive"), torch.zeros(NUM_REQUESTS, 0, dtype=torch.int64)
    small = workspace(NUM_REQUESTS, 1, 40, DEVICE, 1)
    for step in range(NUM_POSITIONS):
        row = slice(step, step + 1)
        result = walk(
            risky[:, row],
            safe[:, row],
            accounts=account,
            uniform=SEEDS.to(DEVICE),
            drafts=no_drafts.to(DEVICE),
            memory=small,
        )
        assert torch.equal(result.token_ids, plain.token_ids[:, row])
        assert torch.equal(result.spend, plain.spends[:, row])


def test_given_uniforms_draw_like_the_seeds_they_come_from(logit_pairs):
    risky, safe = pairs(logit_pairs, 40, 4)
    plain = plain_decoding(risky, safe, "global")
    steps = torch.arange(NUM_POSITIONS).expand(NUM_REQUESTS, -1)
    result = walk(
        risky,
        safe,
        accounts=accounts("global"),
        uniform=uniforms(SEEDS, steps).to(DEVICE),
        drafts=plain.token_ids[:, :-1].contiguous(),
        memory=memory(40),
    )
    assert bool(result.was_reached.all())
    check_reached_rows(result, plain)


@pytest.mark.parametrize("divergence", ["kl", "max"])
def test_scores_are_those_of_decoding(divergence, logit_pairs):
    risky, safe = pairs(logit_pairs, 50, 5, "masked_both")
    plain = plain_decoding(risky, safe, "adaptive", divergence)
    account = accounts("adaptive")
    result = score(
        risky,
        safe,
        plain.token_ids,
        accounts=account,
        memory=memory(50),
        divergence=divergence,
    )
    assert bool(result.was_reached.all())
    check_reached_rows(result, plain)
    assert torch.equal(account[:, SPENT.value], plain.spends.sum(1))
    safe_log_probs = safe.double().log_softmax(-1).gather(2, plain.token_ids[..., None])[..., 0]
    torch.testing.assert_close(result.safe_log_probs, safe_log_probs, rtol=0, atol=1e-12)


def test_a_token_that_p_star_bans_scores_minus_infinity():
    safe = torch.tensor([[[0.0, 0.0, -math.inf]]], device=DEVICE)
    risky = torch.tensor([[[0.0, -math.inf, 0.0]]], device=DEVICE)
    account = new_accounts([2.0], [2.0], [0.0], "adaptive", DEVICE)
    for token, expected in ((0, 0.0), (1, -math.inf), (2, -math.inf)):
        result = score(
            risky,
            safe,
            torch.tensor([[token]], device=DEVICE),
            accounts=account.clone(),
            memory=workspace(1, 1, 3, DEVICE, 1),
        )
        assert result.log_probs.item() == expected


def test_an_invalid_row_ends_its_walk_and_is_not_committed(logit_pairs):
    risky, safe = pairs(logit_pairs, 40, 6)
    plain = plain_decoding(risky, safe, "adaptive")
    risky[1, 1, 3], risky[2, 2, 0] = math.nan, math.nan
    account = accounts("adaptive")
    drafts = plain.token_ids[:, :-1].clone()
    drafts[2, 1] = -1  # what lies behind a rejection is never read
    result = walk(
        risky,
        safe,
        accounts=account,
        uniform=SEEDS.to(DEVICE),
        drafts=drafts,
        memory=memory(40),
    )
    assert result.was_reached.tolist() == [[True] * 3, [True, True, False], [True, True, False]]
    assert result.is_valid[1].tolist()[:2] == [True, False]
    assert result.token_ids[1, 1] == -1
    assert account[:, STEP.value].tolist() == [3.0, 1.0, 2.0]
    assert account[1, SPENT.value] == plain.spends[1, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drafts": torch.zeros(3, 3, dtype=torch.int64)}, r"drafts must be \(3, 2\) torch.int64"),
        ({"uniform": torch.zeros(3, 3, 3)}, r"uniform must be \(3, 3, 3\) torch.float64"),
        ({"accounts": torch.zeros(3, 5).double()}, r"accounts must be \(3, 6\) torch.float64"),
        ({"risky_logits": torch.zeros(3, 3, 8)}, r"risky_logits must be \(3, 3, 7\)"),
        ({"divergence": "tv"}, "divergence must be 'kl' or 'max', got 'tv'"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    arguments = {
        "risky_logits": torch.zeros(3, 3, 7, device=DEVICE),
        "safe_logits": torch.zeros(3, 3, 7, device=DEVICE),
        "accounts": accounts("adaptive"),
        "uniform": SEEDS.to(DEVICE),
        "drafts": torch.zeros(3, 2, dtype=torch.int64, device=DEVICE),
        "memory": memory(7),
    } | {name: x.to(DEVICE) if torch.is_tensor(x) else x for name, x in change.items()}
    risky, safe = arguments.pop("risky_logits"), arguments.pop("safe_logits")
    with pytest.raises(ValueError, match=message):
        walk(risky, safe, **arguments)
    with pytest.raises(ValueError, match="schedule must be one of adaptive, global, fixed"):
        accounts("weekly")
