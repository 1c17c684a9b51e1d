"""The walk: the same decisions and spends as one call a step, up to the first rejection."""

import math

import pytest
import torch
from logit_kinds import random_logits

from anchored.decode.rules.budget import Budget
from anchored.decode.vllm.fusion import walk
from anchored.kernels.projection import project_kl, project_max
from anchored.kernels.sampler import uniforms
from anchored.kernels.spend import SPENT, STEP, new_accounts

NUM_REQUESTS, NUM_POSITIONS = 3, 3
PER_STEP, TOTAL, DEBT = 0.3, 0.6, 0.1
KEYS = torch.arange(NUM_REQUESTS) + 11
ALL = torch.ones(NUM_REQUESTS, dtype=torch.bool)


def accounts(schedule):
    columns = [[value] * NUM_REQUESTS for value in (PER_STEP, TOTAL, DEBT)]
    return new_accounts(*columns, schedule, torch.device("cpu"))


def pairs(vocab_size, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (NUM_REQUESTS, NUM_POSITIONS, vocab_size)
    rows = NUM_REQUESTS * NUM_POSITIONS
    return [x.view(shape) for x in random_logits("generic", rows, vocab_size, generator)]


def plain_decoding(risky, safe, schedule, divergence="kl"):
    """Tokens, spends, budgets and log p* of one token a call, (B, G) each."""
    project = project_kl if divergence == "kl" else project_max
    budget = Budget(
        per_step=PER_STEP, total=TOTAL, horizon=NUM_POSITIONS, debt=DEBT, schedule=schedule
    )
    spent, steps = [0.0] * NUM_REQUESTS, []
    for step in range(NUM_POSITIONS):
        allowed = torch.tensor([budget.allowance(step, nats) for nats in spent], dtype=torch.double)
        uniform = uniforms(KEYS, torch.full((NUM_REQUESTS,), step))
        drawn = project(risky[:, step], safe[:, step], allowed, uniform)
        log_probs = drawn.token_log_probs(drawn.token_ids)
        steps.append((drawn.token_ids, drawn.spend, allowed, log_probs))
        spent = [nats + more for nats, more in zip(spent, drawn.spend.tolist(), strict=True)]
    return [torch.stack(column, dim=1) for column in zip(*steps, strict=True)]


@pytest.mark.parametrize(
    ("schedule", "divergence"),
    [("adaptive", "kl"), ("adaptive", "max"), ("global", "kl"), ("fixed", "kl")],
)
def test_a_walk_is_plain_decoding_up_to_the_first_rejection(schedule, divergence):
    risky, safe = pairs(60, 1)
    tokens, spends, budgets, log_probs = plain_decoding(risky, safe, schedule, divergence)
    drafts = tokens[:, :-1].clone()
    drafts[1, 1] = (drafts[1, 1] + 1) % 60
    drafts[2, 0] = -1
    account = accounts(schedule)
    asked = {"keys": KEYS, "drafts": drafts, "divergence": divergence}
    drawn, reached = walk(risky, safe, accounts=account, is_going=ALL, **asked)
    assert reached.tolist() == [[True] * 3, [True, True, False], [True, False, False]]
    assert torch.equal(drawn.token_id[reached], tokens[reached])
    assert torch.equal(drawn.spend[reached], spends[reached])
    assert torch.equal(drawn.budget[reached], budgets[reached])
    assert (drawn.log_prob - log_probs)[reached].abs().max() < 1e-12
    assert torch.equal(account[:, SPENT], torch.where(reached, spends, 0.0).sum(1))
    assert account[:, STEP].tolist() == [3.0, 2.0, 1.0]


def test_an_invalid_row_ends_its_walk_and_is_not_committed():
    risky, safe = pairs(40, 6)
    tokens, spends, *_ = plain_decoding(risky, safe, "adaptive")
    risky[1, 1, 3], risky[2, 2, 0] = math.nan, math.nan
    account, drafts = accounts("adaptive"), tokens[:, :-1].clone()
    drafts[2, 1] = -1  # what lies behind a rejection is never read
    drawn, reached = walk(risky, safe, accounts=account, is_going=ALL, keys=KEYS, drafts=drafts)
    assert reached.tolist() == [[True] * 3, [True, True, False], [True, True, False]]
    assert drawn.token_id[1].tolist()[1] == -1 and drawn.token_id[1, 0] >= 0
    assert account[:, STEP].tolist() == [3.0, 1.0, 2.0]
    assert account[1, SPENT] == spends[1, 0]


def test_a_greedy_walk_takes_the_likeliest_token_of_each_law():
    risky, safe = pairs(50, 8)
    account, asked = accounts("adaptive"), {"is_going": ALL, "keys": None}
    drafts = torch.full((NUM_REQUESTS, NUM_POSITIONS - 1), -1)
    first, reached = walk(risky, safe, accounts=account.clone(), drafts=drafts, **asked)
    assert reached.tolist() == [[True, False, False]] * NUM_REQUESTS
    drafts[:, 0] = first.token_id[:, 0]
    drawn, _ = walk(risky, safe, accounts=account, drafts=drafts, **asked)
    assert account[:, STEP].tolist() == [2.0] * NUM_REQUESTS
    for place in range(2):
        law = project_kl(risky[:, place], safe[:, place], drawn.budget[:, place])
        assert torch.equal(drawn.token_id[:, place], law.log_probs().argmax(-1))
        assert torch.equal(drawn.spend[:, place], law.spend)
