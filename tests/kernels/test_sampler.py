"""Uniforms by their published vectors; the coupled sampler draws p* and keeps the most drafts."""

import math

import pytest
import torch
from drawn_tokens import follows
from hypothesis import given, settings
from hypothesis import strategies as st
from logit_kinds import DEVICE, random_budgets, random_logits

from anchored.kernels import reference
from anchored.kernels.cpu.rows import PIECE_SIZE
from anchored.kernels.project import project_kl, project_max
from anchored.kernels.sampler import coupled_sample, philox, uniforms

NUM_DRAWS = 60_000

FALSE_ALARM_Z = 4.9
"""A standard normal exceeds it in absolute value once in a million times."""


# Known answers for philox4x32-10 from the Random123 distribution (kat_vectors).
KNOWN_ANSWERS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, words):
    actual = philox(torch.tensor(counter)[:, None], torch.tensor(key)[:, None])
    assert actual[:, 0].tolist() == words


def test_the_three_uniforms_are_the_top_53_bits_of_their_words():
    """A key's low and high word, and those of a block: two for each position."""
    drawn = uniforms(torch.tensor([(7 << 32) + 3]), torch.tensor([(5 << 32) + 6]))[0].tolist()
    counter = torch.tensor([[12, 13], [10, 10], [0, 0], [0, 0]])
    words = philox(counter, torch.tensor([[3], [7]]))
    first, second = words.T.tolist()
    pairs = [(first[0], first[1]), (first[2], first[3]), (second[0], second[1])]
    assert drawn == [((high << 32 | low) >> 11) / 2**53 for high, low in pairs]


@given(seed=st.integers(-(2**63), 2**63 - 1), position=st.integers(0, 2**40))
@settings(max_examples=30)
def test_a_draw_depends_on_its_seed_and_position_only(seed, position):
    seeds = torch.tensor([seed, 1, 2])
    positions = torch.tensor([[position, position + 1], [0, 1], [5, 6]])
    batch = uniforms(seeds, positions)
    assert batch.shape == (3, 2, 3)
    assert bool(((batch >= 0) & (batch < 1)).all())
    for step in range(2):
        assert torch.equal(batch[:, step], uniforms(seeds, positions[:, step]))
    assert torch.equal(batch[:1], uniforms(seeds[:1], positions[:1]))


def test_draws_are_uniform_and_uncorrelated():
    drawn = uniforms(torch.arange(200), torch.arange(500).expand(200, -1)).reshape(-1, 3)
    counts = torch.stack([torch.histc(column, 64, 0.0, 1.0) for column in drawn.T])
    expected = len(drawn) / 64
    chi_square = ((counts - expected) ** 2 / expected).sum(-1)
    # Fixed seed; 63 degrees of freedom: above 127.5 once in a million draws of a fair generator.
    assert chi_square.max() < 127.5
    correlation = torch.corrcoef(drawn.T).fill_diagonal_(0.0)
    assert correlation.abs().max() < 5.0 / len(drawn) ** 0.5


def draws(seed: int):
    return uniforms(torch.full((NUM_DRAWS,), seed), torch.arange(NUM_DRAWS))


def check_draws(token_ids, accepted, safe_probs, probs):
    distance = 0.5 * (probs - safe_probs).abs().sum()
    residual = (probs - safe_probs).clamp_min(0.0)
    assert follows(token_ids, probs)
    assert follows(token_ids[~accepted], residual / residual.sum())
    assert follows(token_ids[accepted], torch.minimum(probs, safe_probs) / (1.0 - distance))
    kept = 1.0 - distance.item()
    deviation = math.sqrt(kept * (1.0 - kept) / len(accepted))
    assert abs(accepted.double().mean().item() - kept) <= FALSE_ALARM_Z * deviation + 1e-12


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
