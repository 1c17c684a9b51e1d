"""The paper's algorithm as it stands, step by step, against what `Decoder` does in its place."""

import pytest
import torch
from reference_steps import reference_steps
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from anchored import Anchored, Decoder
from anchored.decode.ledger import LedgerStep
from anchored.decode.levels.level import Level
from anchored.decode.reference_decoder import ReferenceStep, allowance, project
from anchored.decode.rules.rule import StepInputs
from anchored.kernels import reference

LENGTH = 6
CLOSE = {"kl": 1e-9, "renyi": 1e-9, "max": 5e-9}
"""Nats: float64 models, so that rounding and the grid of spends (2**-32) are left, and the 2e-9
that a clipped law keeps back of its budget."""


def warpers(settings: dict) -> LogitsProcessorList:
    """Those of transformers, in the order of SamplingConfig."""
    kinds = {
        "repetition_penalty": RepetitionPenaltyLogitsProcessor,
        "temperature": TemperatureLogitsWarper,
        "top_k": TopKLogitsWarper,
        "top_p": TopPLogitsWarper,
        "min_p": MinPLogitsWarper,
    }
    return LogitsProcessorList(kinds[name](settings[name]) for name in kinds if name in settings)


SAMPLINGS = {
    0.4: {"temperature": 0.7, "repetition_penalty": 1.1},
    3.0: {
        "temperature": 1.3,
        "repetition_penalty": 1.4,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.01,
    },
}
"""By k, nats a step: models of truncated vocabularies share little, which takes a larger one."""


def product_log_probs(
    rule: Anchored, level: Level, step: ReferenceStep, budget: float
) -> torch.Tensor:
    """(V,) p* of the product behind the same warped logits."""
    inputs = StepInputs(
        logits={"safe": step.safe_log_probs[None], "risky": step.risky_log_probs[None]},
        warp=lambda logits: logits,
        budget=torch.tensor([budget], dtype=torch.float64),
        uniform=None,
    )
    return rule.open(level).next_token(inputs).log_probs()[0].double()


def paper_log_probs(rule: Anchored, step: ReferenceStep, entry: LedgerStep) -> torch.Tensor:
    """(V,) log p* by its definition, where the product's search has stopped."""
    if rule.divergence == "max" or entry.weight == 0.0:
        rows = step.risky_log_probs, step.safe_log_probs
        return project(*rows, entry.spend, rule.divergence, rule.order)
    rows = step.risky_log_probs[None], step.safe_log_probs[None]
    return reference.tilted_log_probs(*rows, torch.tensor([entry.weight], dtype=torch.float64))[0]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("k", SAMPLINGS)
@pytest.mark.parametrize("budget", ["adaptive", "global", "fixed"])
@pytest.mark.parametrize("divergence", ["kl", "renyi", "max"])
def test_distributions_spends_and_tokens_of_a_decoder_are_those_of_the_paper(
    pair, divergence, budget, k
):
    """A certified search stops a little below a budget that binds: the paper's law is compared
    where it stopped, and that point with the paper's own within what docs/certificate.md allows."""
    order = 1.5 if divergence == "renyi" else None
    rule = Anchored(k=k, divergence=divergence, order=order, budget=budget)
    distance, close = reference.divergence_of(divergence, order), CLOSE[divergence]
    decoder = Decoder(pair, rule)
    (result,) = decoder.generate(
        "the keeper of the lamp, salt and rain", max_new_tokens=LENGTH, seed=5, **SAMPLINGS[k]
    )
    prompt, spent = result.ledger.header.prompt_token_ids, 0.0
    debt, steps = reference_steps(
        pair, prompt, rule, length=LENGTH, seed=5, warpers=warpers(SAMPLINGS[k])
    )
    assert result.ledger.header.debt == pytest.approx(debt, abs=1e-9)
    assert result.token_ids == [step.token_id for step in steps]
    for t, (step, recorded) in enumerate(zip(steps, result.ledger.steps, strict=True)):
        assert recorded.accepted == step.accepted
        nats = allowance(t, k, k * LENGTH, debt, spent, budget)
        assert recorded.budget == pytest.approx(nats, abs=1e-9)
        star = paper_log_probs(rule, step, recorded)
        nats = distance(star[None], step.safe_log_probs[None]).item()
        assert recorded.spend == pytest.approx(nats, abs=close)
        best = project(
            step.risky_log_probs, step.safe_log_probs, recorded.budget, divergence, order
        )
        most = distance(best[None], step.safe_log_probs[None]).item()
        assert most - max(1e-5 * recorded.budget, 1e-7) <= recorded.spend <= recorded.budget
        assert (
            product_log_probs(rule, decoder.level, step, recorded.budget).exp() - star.exp()
        ).abs().max() < close
        assert recorded.log_prob == pytest.approx(star[step.token_id].item(), abs=close)
        safe_log_prob = step.safe_log_probs[step.token_id].item()
        assert recorded.safe_log_prob == pytest.approx(safe_log_prob, abs=1e-9)
        spent += recorded.spend
    assert len(steps) == LENGTH and max(step.weight for step in result.ledger.steps) > 0.0
