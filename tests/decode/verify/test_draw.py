"""The token that uniforms give: exactly the sampler's, and within rounding its neighbors'."""

import math

import pytest
import torch
from torch import Tensor

from anchored.decode.verify.draw import Draw
from anchored.decode.verify.rounding import COMMON, NUM_DEVIATIONS
from anchored.kernels import reference
from anchored.kernels.sampler import coupled_sample

TOLERANCE = 0.2
NUM_SYMBOLS = 20


def draw_of(safe: Tensor, star: Tensor, uniform: Tensor) -> Draw:
    """With one tolerance for everything."""
    tolerance = torch.full_like(safe, TOLERANCE)
    first, second, third = uniform.tolist()
    return Draw(
        uniform=(first, second, third),
        safe=safe,
        star=star,
        safe_tolerance=TOLERANCE,
        star_tolerance=tolerance,
        ratio_tolerance=2.0 * tolerance,
    )


def random_log_probs(generator: torch.Generator) -> Tensor:
    logits = 2.0 * torch.randn(1, NUM_SYMBOLS, generator=generator, dtype=torch.float64)
    logits[torch.rand(logits.shape, generator=generator) < 0.2] = -math.inf
    logits[0, 0] = 0.0
    return reference.log_softmax(logits)


def random_steps(count: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """log p_s, log p* and three uniforms."""
    generator = torch.Generator().manual_seed(5)
    steps = []
    for _ in range(count):
        safe, risky = random_log_probs(generator), random_log_probs(generator)
        weight = torch.tensor([0.6], dtype=torch.float64)
        star = reference.tilted_log_probs(risky, safe, weight)[0]
        steps.append((safe[0], star, torch.rand(3, generator=generator, dtype=torch.float64)))
    return steps


def drawn(safe: Tensor, star: Tensor, uniform: Tensor) -> tuple[int, bool]:
    token_ids, accepted = coupled_sample(safe[None], star[None], uniform[None])
    return int(token_ids.item()), bool(accepted.item())


def drawable(draw: Draw, scale: float) -> set[tuple[int, bool]]:
    return {
        (token_id, accepted)
        for accepted in (True, False)
        for token_id in (draw.needed(accepted=accepted) <= scale).nonzero()[:, 0].tolist()
    }


def test_exactly_what_the_sampler_draws_is_given():
    num_within_rounding = 0
    for safe, star, uniform in random_steps(100):
        draw, expected = draw_of(safe, star, uniform), drawn(safe, star, uniform)
        assert drawable(draw, 0.0) == {expected}
        assert expected in drawable(draw, 1.0)
        num_within_rounding += len(drawable(draw, 1.0)) - 1
    assert 0 < num_within_rounding < 100 * 4  # of 40 a step


def test_what_rounded_distributions_draw_is_given_within_the_tolerance():
    generator = torch.Generator().manual_seed(9)
    deviation, num_moved = TOLERANCE / NUM_DEVIATIONS, 0
    for safe, star, uniform in random_steps(50):
        draw = draw_of(safe, star, uniform)
        exactly, nearly = drawable(draw, 0.0), drawable(draw, 1.0)
        for _ in range(5):
            noise = deviation * torch.randn(2, NUM_SYMBOLS, generator=generator)
            moved = reference.log_softmax(torch.stack([safe, star]) + noise)
            token = drawn(*moved, uniform)
            assert token in nearly
            num_moved += token not in exactly
    assert num_moved > 10


def test_what_no_distribution_nearby_allows_is_not_given():
    safe, risky = (torch.tensor(p, dtype=torch.float64).log() for p in ([1, 0], [0.5, 0.5]))
    third = torch.full((3,), 0.3, dtype=torch.float64)
    draw = draw_of(safe, safe, third)
    assert drawable(draw, 1.0) == {(0, True)}
    leaving = draw_of(safe, risky, torch.tensor([0.3, 0.8, 0.3], dtype=torch.float64))
    assert drawable(leaving, 0.0) == {(1, False)}


def test_errors_that_like_symbols_have_in_common_are_explained():
    """Those with low numbers rise against the others, where all have little."""
    generator = torch.Generator().manual_seed(3)
    safe = reference.log_softmax(torch.randn(1, 5000, generator=generator, dtype=torch.float64))[0]
    side = torch.where(torch.arange(5000) < 2500, 0.5, -0.5)
    num_changed, chances = 0, []
    for _ in range(100):
        uniform = torch.rand(3, generator=generator, dtype=torch.float64)
        common = COMMON * TOLERANCE / NUM_DEVIATIONS * torch.randn(1, generator=generator)
        moved = reference.log_softmax((safe + common * side)[None])[0]
        draw, token = draw_of(safe, safe, uniform), drawn(moved, moved, uniform)
        assert token in drawable(draw, 1.0)
        num_changed += token not in drawable(draw, 0.0)
        chances.append(draw.chance())
    assert num_changed == pytest.approx(sum(chances), rel=0.25)
