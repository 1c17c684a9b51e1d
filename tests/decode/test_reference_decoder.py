"""The paper's algorithm, step by step, against what `Decoder` does in its place."""

from functools import partial

import pytest
import torch
from transformers import GenerationConfig

from anchored import Anchored, Decoder, ModelPair, Pathwise
from anchored.decode.engine.request import random_key
from anchored.decode.ledger import LedgerStep
from anchored.decode.levels.level import Level
from anchored.decode.reference_decoder import ReferenceStep, anchored_decode, prefix_debt, project
from anchored.decode.rules.rule import Rule, StepInputs
from anchored.decode.settings import SamplingConfig
from anchored.kernels import reference

LENGTH, SEED = 6, 5
CLOSE = {"mean": 1e-9, "worst": 5e-9, "drawn": 5e-9}
"""Nats: float64 models, so that rounding and the grid of spends (2**-32) are left, and the 2e-9
that a clipped distribution keeps back of its budget."""


SAMPLINGS = {
    0.4: {"temperature": 0.7, "repetition_penalty": 1.1},
    3.0: {"temperature": 1.3, "repetition_penalty": 1.4, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
}
"""By k, nats a step: models of truncated vocabularies share little, which takes a larger one."""


def reference_steps(
    pair: ModelPair, rule: Anchored | Pathwise, prompt: list[int], sampling: dict[str, float]
) -> tuple[float, list[ReferenceStep]]:
    """The prompt's debt in nats, and what the algorithm draws after transformers' warpers."""
    models = (pair.safe, pair.risky)
    config = GenerationConfig(do_sample=True, **SamplingConfig(**sampling).as_dict())
    debt = prefix_debt(models, prompt, pair.tokenizer.all_special_ids, rule.debt_window)
    steps = anchored_decode(
        models,
        prompt,
        K=(rule.bank or 0.0) + rule.k * LENGTH,
        max_new_tokens=LENGTH,
        key=random_key(SEED, prompt, level="token", place=0),
        stop_token_ids=pair.stop_token_ids,
        debt=debt,
        charge=rule.charge,
        schedule="adaptive" if isinstance(rule, Pathwise) else rule.budget,
        bank=rule.bank,
        warpers=pair.risky._get_logits_processor(config, len(prompt), device="cpu"),
    )
    return debt, list(steps)


def product_log_probs(rule: Rule, level: Level, step: ReferenceStep, budget: float) -> torch.Tensor:
    """(V,) p* of the product after the same warped logits."""
    inputs = StepInputs(
        logits={"safe": step.safe_log_probs[None], "risky": step.risky_log_probs[None]},
        warp=lambda logits: logits,
        budget=torch.tensor([budget], dtype=torch.float64),
        uniform=None,
    )
    return rule.open(level).next_token(inputs).log_probs()[0].double()


def paper_log_probs(rule: Rule, step: ReferenceStep, entry: LedgerStep) -> torch.Tensor:
    """(V,) log p* by its definition, where the product's search has stopped."""
    if rule.charge != "mean" or entry.weight == 0.0:
        nats = entry.budget if rule.charge == "drawn" else entry.spend
        return project(step.risky_log_probs, step.safe_log_probs, nats, rule.charge)
    rows = step.risky_log_probs[None], step.safe_log_probs[None]
    return reference.tilted_log_probs(*rows, torch.tensor([entry.weight], dtype=torch.float64))[0]


def spent(rule: Rule, step: ReferenceStep, star: torch.Tensor) -> float:
    """Nats that the step costs if its distribution is `star`, (V,) log p*."""
    if rule.charge == "drawn":
        return (star - step.safe_log_probs)[step.token_id].item()
    divergence = reference.DIVERGENCES["kl" if rule.charge == "mean" else "max"]
    return divergence(star[None], step.safe_log_probs[None]).item()


RULES = [
    partial(Anchored),
    partial(Anchored, budget="global"),
    partial(Anchored, divergence="max", budget="fixed"),
    partial(Anchored, divergence="max", bank=2.0),
    *(partial(Pathwise, bank=bank) for bank in (0.0, 2.0, 20.0)),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("k", SAMPLINGS)
@pytest.mark.parametrize("kind", RULES, ids=lambda kind: str(kind(k=0)))
def test_distributions_spends_and_tokens_of_a_decoder_are_those_of_the_paper(pair, kind, k):
    """A certified search stops a little below a budget that binds: the paper's distribution is
    compared where it stopped, and that point with the paper's within what docs/certificate.md
    allows."""
    rule = kind(k=k)
    decoder, close = Decoder(pair, rule), CLOSE[rule.charge]
    (result,) = decoder.generate(
        "the keeper of the lamp, salt and rain", max_new_tokens=LENGTH, seed=SEED, **SAMPLINGS[k]
    )
    prompt = result.ledger.header.prompt_token_ids
    debt, steps = reference_steps(pair, rule, prompt, SAMPLINGS[k])
    assert result.ledger.header.debt == pytest.approx(debt, abs=1e-9)
    assert result.token_ids == [step.token_id for step in steps]
    left_unspent = 0.0  # nats, at most, that searches have left for later steps
    for step, recorded in zip(steps, result.ledger.steps, strict=True):
        assert recorded.accepted == step.accepted
        assert recorded.budget == pytest.approx(step.budget, abs=left_unspent + 1e-9)
        left_unspent += max(1e-5 * recorded.budget, 1e-7)
        star = paper_log_probs(rule, step, recorded)
        assert recorded.spend == pytest.approx(spent(rule, step, star), abs=close)
        best = project(step.risky_log_probs, step.safe_log_probs, recorded.budget, rule.charge)
        most = spent(rule, step, best)
        assert most - max(1e-5 * recorded.budget, 1e-7) <= recorded.spend <= recorded.budget
        assert (
            product_log_probs(rule, decoder.level, step, recorded.budget).exp() - star.exp()
        ).abs().max() < close
        assert recorded.log_prob == pytest.approx(star[step.token_id].item(), abs=close)
        safe_log_prob = step.safe_log_probs[step.token_id].item()
        assert recorded.safe_log_prob == pytest.approx(safe_log_prob, abs=1e-9)
    assert len(steps) == LENGTH and max(step.weight for step in result.ledger.steps) > 0.0
