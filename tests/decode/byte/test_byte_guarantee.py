"""What the bound means at byte level: spends, budgets at both ends, and what is drawn."""

import math

import pytest
import torch
from byte_pairs import PROMPTS, log_probs_along
from drawn_tokens import follows
from tiny_models import tiny_llama

from anchored import Anchored, Decoder, ModelPair, Pathwise
from anchored.decode.settings import SamplingConfig
from anchored.decode.tokenizer.vocabulary import END_SYMBOL
from anchored.kernels import reference


@pytest.mark.parametrize("warpers", [{}, {"top_k": 4}], ids=str)
def test_spends_are_the_true_divergence_from_the_safe_model(pair, warpers):
    """Truncation bans bytes of each model that the other one allows."""
    sampling = SamplingConfig(temperature=0.9, repetition_penalty=1.2, **warpers)
    rule = Anchored(k=0.6, debt="none")
    (result,) = Decoder(pair, rule).generate(PROMPTS[1], max_new_bytes=8, **sampling.as_dict())
    logits = {
        name: log_probs_along(pair, name, PROMPTS[1], result.token_ids, sampling=sampling)
        for name in pair.models
    }
    budgets = torch.tensor([step.budget for step in result.ledger.steps], dtype=torch.float64)
    weights = reference.project_kl(logits["risky"], logits["safe"], budgets)
    forced = weights.isnan()
    star = reference.tilted_log_probs(logits["risky"], logits["safe"], weights.nan_to_num())
    star = torch.where(forced[:, None], logits["safe"], star)
    divergences = reference.kl_divergence(star, logits["safe"])
    for step, divergence, log_probs in zip(result.ledger.steps, divergences, star, strict=True):
        assert step.spend <= step.budget
        assert step.spend == pytest.approx(divergence.item(), abs=max(1e-5 * step.budget, 1e-7))
        assert step.log_prob == pytest.approx(log_probs[step.token_id].item(), abs=1e-3)
    allowed = {name: values > -torch.inf for name, values in logits.items()}
    if warpers:
        assert (allowed["safe"] & ~allowed["risky"]).any()
        assert (allowed["risky"] & ~allowed["safe"]).any()


HORIZON = 3


def all_texts(pair: ModelPair, name: str, prompt: str, sampling) -> dict[tuple, float]:
    """A model's log P of every text of HORIZON symbols, or of fewer that end, by the definition."""
    texts, begun = {}, {(): 0.0}
    while begun:
        text, log_prob = begun.popitem()
        row = log_probs_along(pair, name, prompt, [*text, END_SYMBOL], sampling=sampling)[-1]
        for symbol in (row > -torch.inf).nonzero()[:, 0].tolist():
            longer = (*text, symbol)
            is_whole = symbol == END_SYMBOL or len(longer) == HORIZON
            (texts if is_whole else begun)[longer] = log_prob + row[symbol].item()
    return texts


def surer_pair(pair: ModelPair) -> ModelPair:
    """A risky model that is surer of what the safe one says: top_k leaves both the same tokens."""
    surer = tiny_llama(1, max_position_embeddings=256)
    surer.lm_head.weight.data *= 6
    return ModelPair(pair.safe, surer, pair.tokenizer)


@pytest.fixture(scope="module")
def scored_texts(pair):
    """A function of a rule: scores of all texts, and their log P_s."""
    prompt, sampling, one = PROMPTS[3], SamplingConfig(top_k=3), surer_pair(pair)
    safe = all_texts(one, "safe", prompt, sampling)
    options = {"horizon": HORIZON, **sampling.as_dict()}

    def scored(rule) -> tuple[list, list[float]]:
        decoder = Decoder(one, rule, level="byte")
        scores = decoder.score([prompt] * len(safe), [*map(list, safe)], **options)
        total = math.fsum(math.exp(score.log_prob) for score in scores)
        assert len(safe) > 8 and total == pytest.approx(1, abs=1e-7)
        return scores, [*safe.values()]

    return scored


def test_divergences_of_bytes_add_up_to_that_of_texts_within_the_budget(scored_texts):
    scores, safe = scored_texts(Anchored(k=0.1, debt="none"))
    drawn = [(math.exp(s.log_prob), s, nats) for s, nats in zip(scores, safe, strict=True)]
    divergence = math.fsum(prob * (s.log_prob - nats) for prob, s, nats in drawn if prob > 0)
    spends = math.fsum(prob * score.spend for prob, score, _ in drawn if prob > 0)
    assert divergence == pytest.approx(spends, rel=1e-4)
    assert 0.5 * scores[0].bound < divergence <= scores[0].bound


def test_no_text_of_bytes_leaves_what_a_pathwise_budget_has(scored_texts):
    scores, safe = scored_texts(Pathwise(k=0.1, bank=0.3, debt="none"))
    most = max(score.log_prob - nats for score, nats in zip(scores, safe, strict=True))
    assert 0.8 * scores[0].bound < most <= scores[0].bound == 0.3 + HORIZON * 0.1


def test_an_ample_budget_draws_the_texts_of_the_masked_risky_model(pair):
    prompt, one = PROMPTS[3], surer_pair(pair)
    sampling = SamplingConfig(top_k=3, temperature=4.0)
    probs = {t: math.exp(p) for t, p in all_texts(one, "risky", prompt, sampling).items()}
    decoder = Decoder(one, Anchored(k=1000.0, debt="none"), level="byte", batch_size=64)
    options = {"max_new_bytes": HORIZON, "seed": range(300), **sampling.as_dict()}
    place = {text: number for number, text in enumerate(probs)}
    drawn = [place[tuple(r.token_ids)] for r in decoder.generate([prompt] * 300, **options)]
    assert sum(prob * 300 >= 5 for prob in probs.values()) > 3
    assert math.fsum(probs.values()) == pytest.approx(1, abs=1e-9)
    assert follows(torch.tensor(drawn), torch.tensor([*probs.values()], dtype=torch.float64))
