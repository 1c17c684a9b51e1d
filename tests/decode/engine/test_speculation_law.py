"""Speculative decoding has the law of plain decoding: all texts enumerated, in float64."""

import pytest
import torch
from round_enumeration import Enumeration, ScriptedRule
from tiny_models import every_text, tiny_llama, word_tokenizer

from anchored import Anchored, Decoder, ModelPair
from anchored.decode.settings import SamplingConfig
from anchored.kernels.spend import SPEND_QUANTUM

TOLERANCE = 1e-12
K, DEBT = 0.3, 0.3


def make_pair(vocab_size: int) -> ModelPair:
    sizes = {"vocab_size": vocab_size, "layers": 1, "hidden_size": 16, "intermediate_size": 16}
    models = [tiny_llama(seed, **sizes) for seed in (1, 2)]
    for model in models:
        model.lm_head.weight.data *= 1.5
    return ModelPair(*models, word_tokenizer(vocab_size))


@pytest.fixture(scope="module")
def four_tokens() -> ModelPair:
    return make_pair(4)


def plain_law(pair, rule, horizon, sampling):
    """(probability of every text, expected spend) by scoring texts, teacher forced."""
    every = every_text(range(pair.vocab_size), horizon)
    decoder = Decoder(pair, rule, batch_size=len(every))
    scores = decoder.score([[0]] * len(every), every, horizon=horizon, **sampling.as_dict())
    probs = torch.tensor([score.log_prob for score in scores], dtype=torch.float64).exp().tolist()
    law = {tuple(text): prob for text, prob in zip(every, probs, strict=True)}
    return law, sum(p * score.spend for p, score in zip(probs, scores, strict=True))


def errors(pair, rule, *, gamma, horizon, sampling=None):
    """(largest difference of a text's probability, difference of the expected spends)."""
    sampling = sampling or SamplingConfig(temperature=1.0, repetition_penalty=1.0)
    enumeration = Enumeration(
        pair=pair,
        rule=rule,
        gamma=gamma,
        horizon=horizon,
        sampling=sampling,
    )
    law, spend = enumeration.law()
    expected, expected_spend = plain_law(
        pair, ScriptedRule(rule.rule, rule.debt), horizon, sampling
    )
    assert set(law) <= set(expected)
    difference = max(abs(law.get(text, 0.0) - prob) for text, prob in expected.items())
    return difference, abs(spend - expected_spend)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("divergence", ["kl", "max"])
@pytest.mark.parametrize("gamma", [1, 2])
def test_every_text_has_its_plain_probability(four_tokens, gamma, divergence):
    rule = ScriptedRule(Anchored(k=K, divergence=divergence), DEBT)
    law_error, spend_error = errors(four_tokens, rule, gamma=gamma, horizon=4)
    assert law_error < TOLERANCE and spend_error < SPEND_QUANTUM


TOP_3 = SamplingConfig(temperature=0.8, repetition_penalty=1.3, top_k=3)
LARGER = [
    (5, 4, 3, Anchored(k=K), DEBT, TOP_3),
    (5, 4, 1, Anchored(k=K, divergence="max"), 0.0, TOP_3),
    (4, 5, 4, Anchored(k=K, divergence="max"), DEBT, None),
    (4, 5, 2, Anchored(k=0.2, budget="global"), 0.5, None),
    (6, 3, 2, Anchored(k=K), DEBT, None),
    (4, 4, 2, Anchored(k=K, budget="fixed"), DEBT, None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("vocab_size", "horizon", "gamma", "rule", "debt", "sampling"), LARGER)
def test_longer_drafts_masks_and_budgets_keep_the_law(
    vocab_size, horizon, gamma, rule, debt, sampling
):
    pair, rule = make_pair(vocab_size), ScriptedRule(rule, debt)
    law_error, spend_error = errors(pair, rule, gamma=gamma, horizon=horizon, sampling=sampling)
    assert law_error < TOLERANCE and spend_error < SPEND_QUANTUM
