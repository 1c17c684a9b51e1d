"""What a recorded step claims, and how far noise of the logits moves it."""

import math

import pytest
import torch
from torch import Tensor

from anchored.decode.ledger import LedgerStep
from anchored.decode.replay import oracle
from anchored.decode.replay.replay import ForcedStep
from anchored.decode.replay.step_laws import (
    NUM_DEVIATIONS,
    Logits,
    Rounding,
    StepLaws,
    step_laws,
)
from anchored.decode.replay.step_report import StepReport, step_report
from anchored.decode.rules.rule import StepInputs
from anchored.kernels.projection import project_kl

DEVIATION = 0.02
NUM_SYMBOLS = 50


def step(**changes) -> LedgerStep:
    figures = {"budget": 1.0, "spend": 0.3, "weight": 0.4, "log_prob": 0.0, "safe_log_prob": 0.0}
    return LedgerStep(step=0, token_id=0, accepted=True, **{**figures, **changes})


def logits_of(safe: Tensor, risky: Tensor) -> Logits:
    rounding = Rounding(dtype=torch.float64, measured=DEVIATION)
    return Logits(safe=safe, risky=risky, safe_rounding=rounding, risky_rounding=rounding)


def noisy(kind: str, safe: Tensor, risky: Tensor, recorded: LedgerStep) -> list[StepLaws]:
    """The laws of 100 runs whose logits differ by normal noise."""
    generator = torch.Generator().manual_seed(1)

    def moved(logits: Tensor) -> Tensor:
        return logits + DEVIATION * torch.randn(NUM_SYMBOLS, generator=generator)

    runs = [logits_of(moved(safe), moved(risky)) for _ in range(100)]
    return [step_laws(kind, logits, recorded, logits.safe) for logits in runs]


def random_pair(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2.0 * torch.randn(2, NUM_SYMBOLS, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("weight", [0.1, 0.5, 1.0])
def test_a_divergence_deviates_as_noise_makes_it(weight):
    safe, risky = random_pair(4)
    recorded = step(weight=weight)
    expected = step_laws("kl", logits_of(safe, risky), recorded, safe).divergence_deviation
    found = [laws.divergence for laws in noisy("kl", safe, risky, recorded)]
    assert torch.tensor(found).std().item() == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize("weight", [0.02, 0.3, 1.0])
def test_a_log_ratio_deviates_as_noise_makes_it(weight):
    safe, risky = random_pair(4)
    risky = 10.0 * risky  # far apart: a small weight moves much of the mass
    recorded = step(weight=weight)
    laws = step_laws("kl", logits_of(safe, risky), recorded, safe)
    found = torch.stack([o.star - o.safe for o in noisy("kl", safe, risky, recorded)]).std(0)
    share = laws.ratio_deviation / found
    assert share.min() > 0.7 and share.max() < 1.4


def test_laws_that_agree_differ_by_the_variance_of_noise():
    safe, _ = random_pair(4)
    recorded = step(weight=1.0)
    laws = step_laws("kl", logits_of(safe, safe), recorded, safe)
    assert laws.divergence == pytest.approx(0.0, abs=1e-15)
    found = torch.tensor([laws.divergence for laws in noisy("kl", safe, safe, recorded)])
    assert 0.5 < found.mean().item() / laws.divergence_deviation < 1.0
    assert (found > NUM_DEVIATIONS * laws.divergence_deviation).sum() <= 1  # of 100


@pytest.mark.parametrize("nats", [0.5, 2.0, 4.0])
def test_the_scale_of_a_clipped_law_stays_in_its_range(nats):
    safe, risky = random_pair(6)
    laws = step_laws("max", logits_of(safe, risky), step(spend=nats), safe)
    lowest, highest = laws.log_scales
    scales = [
        oracle.clipped(other.safe, oracle.law_of(risky), nats)[1]
        for other in noisy("max", safe, risky, step(spend=nats))
    ]
    assert all(lowest <= scale <= highest for scale in scales)
    assert highest - lowest < 1.0


def test_a_step_that_spends_nothing_claims_the_safe_law():
    safe, risky = random_pair(8)
    laws = step_laws("kl", logits_of(safe, risky), step(spend=0.0, weight=0.0), safe)
    assert torch.equal(laws.star, laws.safe) and laws.divergence == 0.0


def replayed(safe: list[float], budget: float, recorded: LedgerStep) -> StepReport:
    """Beside a risky model that bans the last of three symbols; drawn by uniforms of 0.1."""
    rows = torch.tensor([safe, [0.0, 0.0, -math.inf]], dtype=torch.float64)
    uniform = torch.full((1, 3), 0.1, dtype=torch.float64)
    budgets = torch.tensor([budget], dtype=torch.float64)
    inputs = StepInputs(
        logits={"safe": rows[:1], "risky": rows[1:]},
        warp=lambda logits: logits,
        budget=budgets,
        uniform=uniform,
    )
    drawn = project_kl(rows[1:], rows[:1], budgets, uniform)
    forced = ForcedStep(0, inputs, drawn, torch.zeros(1, 2, dtype=torch.bool))
    return step_report("kl", logits_of(*rows), drawn, forced, recorded)


@pytest.mark.parametrize(("moved", "is_explained"), [(0.01, True), (0.5, False)])
def test_rounding_may_decide_whether_a_budget_pays_for_the_common_support(moved, is_explained):
    # Recorded: mass 2/3 is shared, which costs log 1.5. Replayed: it costs a little more.
    budget = math.log(1.5) + 1e-4
    third = math.log(1.0 / 3.0)
    recorded = step(
        budget=budget, spend=math.log(1.5), weight=1.0, log_prob=-math.log(2), safe_log_prob=third
    )
    assert replayed([0.0, 0.0, 0.0], budget, recorded).failures() == []
    report = replayed([0.0, 0.0, moved], budget, recorded)
    assert (report.failures() == []) == is_explained
