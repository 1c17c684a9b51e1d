"""How far a draw is from its uniforms: zero for what the sampler draws, noise's own cost else."""

import math

import pytest
import torch
from torch import Tensor

from anchored.decode.replay import oracle
from anchored.decode.replay.draw_deviation import Cells, Draw
from anchored.decode.replay.step_laws import NUM_DEVIATIONS, Deviations, StepLaws
from anchored.kernels.sampler import coupled_sample

DEVIATION = 0.05


def laws_of(safe: Tensor, star: Tensor) -> StepLaws:
    """With one deviation for everything."""
    each = torch.full_like(safe, DEVIATION)
    return StepLaws(
        safe=safe,
        star=star,
        divergence=oracle.kl(star, safe),
        divergence_deviation=DEVIATION,
        spend_deviation=DEVIATION,
        deviations=Deviations(DEVIATION, DEVIATION),
        star_deviation=each,
        star_deviations=(DEVIATION, 0.0),
        ratio_deviation=each,
    )


def random_law(generator: torch.Generator, num_symbols: int = 20) -> Tensor:
    logits = 2.0 * torch.randn(num_symbols, generator=generator, dtype=torch.float64)
    logits[torch.rand(num_symbols, generator=generator) < 0.2] = -math.inf
    logits[0] = 0.0
    return oracle.law_of(logits)


def drawn(safe: Tensor, star: Tensor, uniform: Tensor) -> tuple[int, bool]:
    token_ids, accepted = coupled_sample(safe[None], star[None], uniform[None])
    return token_ids.item(), accepted.item()


def test_only_what_the_sampler_draws_costs_nothing():
    generator = torch.Generator().manual_seed(5)
    for _ in range(300):
        safe, risky = random_law(generator), random_law(generator)
        star = oracle.tilted(safe, risky, 0.6)
        uniform = torch.rand(3, generator=generator, dtype=torch.float64)
        draw = Draw.of(laws_of(safe, star), tuple(uniform.tolist()))
        costs = {accepted: draw.costs(accepted=accepted) for accepted in (True, False)}
        token_id, accepted = drawn(safe, star, uniform)
        assert costs[accepted][token_id] == 0.0
        assert sum(int((cost == 0.0).sum()) for cost in costs.values()) == 1


def test_what_no_law_nearby_allows_costs_infinitely():
    safe, risky = (torch.tensor(p, dtype=torch.float64).log() for p in ([1, 0], [0.5, 0.5]))
    draw = Draw.of(laws_of(safe, safe), (0.3, 0.3, 0.3))
    assert draw.costs(accepted=True).tolist() == [0.0, math.inf]
    assert draw.costs(accepted=False).tolist() == [math.inf, math.inf]
    leaving = Draw.of(laws_of(safe, risky), (0.3, 0.8, 0.3))
    assert leaving.costs(accepted=False)[1] == 0.0


def test_a_uniform_beyond_an_edge_is_as_far_as_the_edge_moves():
    probs = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64)
    cells = Cells.of(probs.log(), torch.full_like(probs, DEVIATION))
    # F(0) = 1/4 moves by 0.05 sqrt((3/4 / 4)^2 + (1/4)^2 (1/16 + 1/4)).
    moves = DEVIATION * math.sqrt((3 / 16) ** 2 + (1 / 4) ** 2 * (1 / 16 + 1 / 4))
    distances = cells.distances(0.25 + 2.0 * moves).tolist()
    assert distances[:2] == pytest.approx([2.0, 0.0], rel=0.05)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_noise_of_nats_makes_a_symbol_the_law_that_weighed_nothing(order):
    # 30 nats of 10 a deviation: half up, half down, 1.5 deviations twice; 0.7 more beside a peer.
    logits = torch.tensor([0.0, -30.0, -700.0], dtype=torch.float64)[order]
    cells = Cells.of(logits, torch.full_like(logits, 10.0))
    place = order.index(1)
    assert cells.distances(0.5)[place].item() == pytest.approx(3.0 / math.sqrt(2.0), rel=0.01)
    assert cells.distances(0.5)[order.index(2)] > 10.0
    peers = torch.tensor([0.0, *[-30.0] * 100], dtype=torch.float64)
    crowd = Cells.of(peers, torch.full_like(peers, 10.0))
    assert 2.0 < crowd.distances(0.5)[50] < 3.5


def test_the_expected_cost_is_that_of_logits_with_normal_noise():
    generator = torch.Generator().manual_seed(9)
    expected = found = 0.0
    for _ in range(60):
        safe, risky = random_law(generator, 200), random_law(generator, 200)
        star = oracle.tilted(safe, risky, 0.3)
        uniform = torch.rand(3, generator=generator, dtype=torch.float64)
        draw = Draw.of(laws_of(safe, star), tuple(uniform.tolist()))
        expected += 10 * draw.expected_cost()
        for _ in range(10):
            moved = [
                oracle.law_of(law + DEVIATION * torch.randn(200, generator=generator))
                for law in (safe, star)
            ]
            token_id, accepted = drawn(*moved, uniform)
            cost = draw.costs(accepted=accepted)[token_id].item()
            assert cost < 2.0 * NUM_DEVIATIONS**2
            found += cost
    assert 0.5 * expected < found < expected * 1.5
