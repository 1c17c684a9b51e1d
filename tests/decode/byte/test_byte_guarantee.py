"""What the bound means at byte level: spends, budgets at both ends, and what is drawn."""

import math
from collections import Counter

import pytest
import torch
from byte_pairs import PROMPTS, log_probs_along, reference_of
from byte_reference import ReferenceDistributions
from scipy.stats import chi2
from tiny_models import tiny_llama

from anchored import Anchored, Decoder, ModelPair, SafeOnly
from anchored.decode.byte.node_distribution import node_distributions
from anchored.decode.settings import SamplingConfig
from anchored.decode.tokenizer.vocabulary import END_SYMBOL
from anchored.kernels import reference

NUM_DRAWS = 400
TEMPERATURE = 0.4
FALSE_ALARM = 1e-6


@pytest.mark.parametrize("warpers", [{}, {"top_k": 4}, {"top_p": 0.6}, {"min_p": 0.2}], ids=str)
def test_spends_are_the_true_divergence_from_the_safe_model(pair, warpers):
    """Truncation bans bytes of each model that the other one allows."""
    sampling = SamplingConfig(temperature=0.9, repetition_penalty=1.2, **warpers)
    rule = Anchored(k=0.6, debt="none")
    (result,) = Decoder(pair, rule).generate(PROMPTS[1], max_new_bytes=10, **sampling.as_dict())
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


def safe_texts(pair: ModelPair, prompt: str, sampling: SamplingConfig) -> dict[tuple, float]:
    """log P_s of every text of HORIZON symbols, or of fewer that end, by the definition."""
    texts, begun = {}, {(): 0.0}
    while begun:
        text, log_prob = begun.popitem()
        row = log_probs_along(pair, "safe", prompt, [*text, END_SYMBOL], sampling=sampling)[-1]
        for symbol in (row > -torch.inf).nonzero()[:, 0].tolist():
            longer = (*text, symbol)
            is_whole = symbol == END_SYMBOL or len(longer) == HORIZON
            (texts if is_whole else begun)[longer] = log_prob + row[symbol].item()
    return texts


@pytest.mark.parametrize("prompt", [PROMPTS[0], PROMPTS[3]])
def test_divergences_of_bytes_add_up_to_that_of_texts_within_the_budget(pair, prompt):
    """A risky model that is surer of what the safe one says: top_k leaves both the same tokens."""
    sampling, surer = SamplingConfig(top_k=3), tiny_llama(1, max_position_embeddings=256)
    surer.lm_head.weight.data *= 6
    one = ModelPair(pair.safe, surer, pair.tokenizer)
    safe = safe_texts(one, prompt, sampling)
    decoder = Decoder(one, Anchored(k=0.1, debt="none"), level="byte")
    scores = decoder.score(
        [prompt] * len(safe), [*map(list, safe)], horizon=HORIZON, **sampling.as_dict()
    )
    drawn = [math.exp(score.log_prob) for score in scores]
    pairs = [pair for pair in zip(drawn, scores, safe.values(), strict=True) if pair[0] > 0]
    divergence = math.fsum(prob * (score.log_prob - log_prob) for prob, score, log_prob in pairs)
    spends = math.fsum(prob * score.spend for prob, score, _ in pairs)
    assert len(safe) > 8 and math.fsum(drawn) == pytest.approx(1, abs=1e-7)
    assert divergence == pytest.approx(spends, rel=1e-4)
    assert 0.5 * scores[0].bound < divergence <= scores[0].bound


def test_no_budget_gives_the_safe_model_exactly(pair):
    anchored = Decoder(pair, Anchored(k=0.0)).generate(PROMPTS, max_new_bytes=12)
    safe = Decoder(pair, SafeOnly()).generate(PROMPTS, max_new_bytes=12)
    assert [result.token_ids for result in anchored] == [result.token_ids for result in safe]
    sampling = SamplingConfig()
    safe_log_probs = log_probs_along(
        pair, "safe", PROMPTS[0], anchored[0].token_ids, sampling=sampling
    )
    for step, log_probs in zip(anchored[0].ledger.steps, safe_log_probs, strict=True):
        assert step.spend == 0.0 and step.accepted
        assert step.log_prob == pytest.approx(log_probs[step.token_id].item(), abs=1e-9)


def test_an_ample_budget_draws_the_texts_of_the_masked_risky_model(pair):
    """One tokenizer: by bytes under a budget against tokens drawn from the masked model."""
    one = ModelPair(tiny_llama(1), pair.safe, pair.tokenizer)
    decoder = Decoder(one, Anchored(k=1000.0, debt="none"), level="byte", batch_size=64)
    seeds = list(range(NUM_DRAWS))
    sampling = {"temperature": TEMPERATURE, "repetition_penalty": 1.0}
    drawn = decoder.generate(["th"] * NUM_DRAWS, max_new_bytes=2, seed=seeds, **sampling)
    counts = Counter(bytes(min(symbol, 0xFF) for symbol in r.token_ids) for r in drawn)
    probs = text_probs(reference_of(one, "risky"), b"th", 2)
    assert counts.keys() <= probs.keys() and math.fsum(probs.values()) == pytest.approx(1, abs=1e-9)
    common = [text for text, prob in probs.items() if prob * NUM_DRAWS >= 5]
    observed = [counts[text] for text in common]
    expected = [probs[text] * NUM_DRAWS for text in common]
    observed.append(NUM_DRAWS - sum(observed))
    expected.append(NUM_DRAWS - math.fsum(expected))
    terms = [(o - e) ** 2 / e for o, e in zip(observed, expected, strict=True)]
    assert len(common) > 8
    assert math.fsum(terms) < chi2.isf(FALSE_ALARM, len(common))


def text_probs(model: ReferenceDistributions, prompt: bytes, number: int) -> dict[bytes, float]:
    """Probability of the `number` bytes behind a prompt (the end: 0xff), token by token.

    Every token sequence that the prompt may begin is followed until it is long enough.
    """
    vocabulary = model.vocabulary
    trie, viability = vocabulary.trie, vocabulary.viability
    probs: dict[bytes, float] = {}
    open_paths = [((), b"", viability.start(), 1.0)]
    while open_paths:
        path, text, state, prob = open_paths.pop()
        distribution = next(
            node_distributions(
                vocabulary,
                [state],
                model.raw_logits(path)[:, vocabulary.ordered_tokens] / TEMPERATURE,
            )
        )
        steps = [
            (text + t, int(token), distribution.of_token(token))
            for t, token in zip(trie.texts, trie.tokens, strict=True)
        ]
        for longer, token, log_prob in [*steps, (text + b"\xff", -1, distribution.log_end)]:
            is_possible = log_prob > -math.inf and longer[: len(prompt)] == prompt[: len(longer)]
            if not is_possible:
                continue
            if token < 0 or len(longer) >= len(prompt) + number:
                key = longer[len(prompt) : len(prompt) + number]
                probs[key] = probs.get(key, 0.0) + prob * math.exp(log_prob)
            else:
                after = viability.extend(state, token)
                open_paths.append(((*path, token), longer, after, prob * math.exp(log_prob)))
    total = math.fsum(probs.values())
    return {text: prob / total for text, prob in probs.items()}
