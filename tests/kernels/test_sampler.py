"""The coupled sampler draws exactly p*, and keeps the safe draft as often as any coupling can."""

import math

import pytest
import torch
from drawn_tokens import follows
from hypothesis import given, settings
from hypothesis import strategies as st
from logit_kinds import random_budgets, random_logits

from anchored.kernels import reference
from anchored.kernels.cpu.rows import PIECE_SIZE
from anchored.kernels.project import project_kl, project_max
from anchored.kernels.sampler import coupled_sample, uniforms

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NUM_DRAWS = 60_000

FALSE_ALARM_Z = 4.9
"""A standard normal exceeds it in absolute value once in a million times."""


def assert_share(accepted, expected):
    share = accepted.double().mean().item()
    deviation = math.sqrt(expected * (1.0 - expected) / len(accepted))
    assert abs(share - expected) <= FALSE_ALARM_Z * deviation + 1e-12


def draws(seed: int):
    return uniforms(torch.full((NUM_DRAWS,), seed), torch.arange(NUM_DRAWS))


def check_draws(token_ids, accepted, safe_probs, probs):
    distance = 0.5 * (probs - safe_probs).abs().sum()
    residual = (probs - safe_probs).clamp_min(0.0)
    assert follows(token_ids, probs)
    assert follows(token_ids[~accepted], residual / residual.sum())
    assert follows(token_ids[accepted], torch.minimum(probs, safe_probs) / (1.0 - distance))
    assert_share(accepted, 1.0 - distance.item())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("project", [project_kl, project_max])
@pytest.mark.parametrize("kind", ["generic", "memorized", "masked_both"])
def test_a_projection_draws_its_distribution(kind, project):
    risky, safe = random_logits(kind, 1, 60, torch.Generator().manual_seed(6))
    budget = torch.full((1,), 0.05) + reference.support_floor(risky, safe)
    rows = (NUM_DRAWS, 60)
    projection = project(risky.expand(rows), safe.expand(rows), budget.expand(NUM_DRAWS), draws(1))
    assert 0.0 < projection.weight[0] < 1.0
    probs = project(risky, safe, budget).log_probs()[0].exp()
    safe_probs = reference.log_softmax(safe)[0].exp()
    check_draws(projection.token_ids, projection.accepted, safe_probs, probs)


def test_coupled_sample_draws_any_distribution_even_off_the_safe_support():
    generator = torch.Generator().manual_seed(7)
    risky, safe = random_logits("masked_both", 1, 40, generator)
    log_probs, safe_log_probs = risky.log_softmax(-1), safe.log_softmax(-1)
    rows = (NUM_DRAWS, 40)
    token_ids, accepted = coupled_sample(
        safe_log_probs.expand(rows), log_probs.expand(rows), draws(2)
    )
    check_draws(token_ids, accepted, safe_log_probs[0].exp(), log_probs[0].exp())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("project", [project_kl, project_max])
def test_the_draft_is_drawn_in_token_id_order_across_blocks(project):
    risky, safe = random_logits("generic", 40, 70_001, torch.Generator().manual_seed(8))
    uniform = uniforms(torch.arange(40), torch.arange(40))
    projection = project(risky, safe, torch.full((40,), 0.5), uniform)
    dense = coupled_sample(safe.log_softmax(-1), projection.log_probs(), uniform)
    assert torch.equal(projection.token_ids, dense[0])
    assert torch.equal(projection.accepted, dense[1])
    assert 0 < projection.accepted.sum() < 40


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy, of lanes that are discarded
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("project", [project_kl, project_max])
def test_a_banned_draft_whose_residual_rounds_away_is_still_replaced(project, backend):
    # u1 = 0 draws token 0, of probability e^-40: the risky model bans it, and floor is lost in 1.0.
    safe = torch.tensor([[-40.0, 0.0]], dtype=torch.float64)
    risky = torch.tensor([[-math.inf, 0.0]], dtype=torch.float64)
    uniform = torch.zeros(1, 3, dtype=torch.float64)
    on_device = (x.to(DEVICE) for x in (risky, safe, torch.ones(1), uniform))
    assert project(*on_device, backend=backend).token_ids.tolist() == [1]
    token_ids, _ = coupled_sample(safe.log_softmax(-1), risky.log_softmax(-1), uniform)
    assert token_ids.tolist() == [1]


def test_a_rejected_draft_without_residual_draws_no_padding():
    # Distributions that agree but for rounding, of a vocabulary that ends in the middle of a piece.
    generator = torch.Generator().manual_seed(10)
    safe = torch.randint(-4096, 4096, (200, PIECE_SIZE + 1), generator=generator) / 1024.0
    uniform = torch.full((200, 3), 1.0 - 2.0**-53, dtype=torch.float64)
    projection = project_kl(safe - 1.0, safe, torch.full((200,), 1.0), uniform)
    assert int(projection.token_ids.max()) <= PIECE_SIZE


@given(
    kind=st.sampled_from(["masked_both", "disjoint_support", "two_atoms", "huge", "scaled"]),
    seed=st.integers(0, 2**31),
    corner=st.sampled_from([0.0, 0.5, 1.0 - 2.0**-53]),
)
@settings(max_examples=60)
def test_no_token_of_zero_probability_is_drawn(kind, seed, corner):
    generator = torch.Generator().manual_seed(seed)
    risky, safe = random_logits(kind, 20, 37, generator)
    uniform = uniforms(torch.full((20,), seed), torch.arange(20))
    uniform[::3, seed % 3] = corner
    for project in (project_kl, project_max):
        projection = project(risky, safe, random_budgets(20, generator), uniform)
        assert bool((projection.token_log_probs(projection.token_ids) > -math.inf).all())
    token_ids, _ = coupled_sample(safe.log_softmax(-1), risky.log_softmax(-1), uniform)
    assert bool((risky.gather(1, token_ids[:, None]) > -math.inf).all())
