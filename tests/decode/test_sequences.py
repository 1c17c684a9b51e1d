"""The bound over whole texts: every text enumerated, whatever the rule charges a step.

The safe probabilities come from plain forwards and numpy alone; p* from `Decoder.score`.
"""

import math
from dataclasses import replace

import numpy as np
import pathwise_oracle as oracle
import pytest
import torch
from tiny_models import every_text, tiny_llama, word_tokenizer

from anchored import Anchored, Decoder, ModelPair, NoOpt, event_bound

PROMPT, HORIZON = [0, 2, 3, 2], 4
ORACLE_ERROR = 1e-11
"""Nats a text: four float64 log-probabilities, taken from logits up to 1,000 at T = 0.05."""

BUDGETS = [
    {"k": 0.0},
    {"k": 0.3, "debt": "average"},
    {"k": 0.3, "budget": "fixed", "debt": "none"},
    {"K": 2.0, "budget": "global"},
    {"k": 0.6, "bank": 0.4, "debt": "none"},
    {"k": 0.1, "bank": 2.0},
]
DIVERGENCES = ("kl", "max")
WARPED = {"temperature": 1.0, "repetition_penalty": 1.0}
SAMPLING = [{}, {"temperature": 0.5, "repetition_penalty": 1.3}, {"temperature": 0.05, "top_k": 2}]


@pytest.fixture(scope="module")
def four_tokens() -> ModelPair:
    sizes = {"vocab_size": 4, "layers": 1, "hidden_size": 16, "intermediate_size": 16}
    models = [tiny_llama(seed, **sizes) for seed in (11, 12)]
    for model in models:
        model.lm_head.weight.data *= 3.0
    return ModelPair(*models, word_tokenizer(4))


TEXTS = every_text(range(4), HORIZON)


def safe_log_prob(model, text, sampling) -> float:
    """log P_s(text | PROMPT) of the warped safe model."""
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + text])).logits[0].numpy()
    rows = (
        oracle.warped(logits[len(PROMPT) - 1 + place], PROMPT + text[:place], **sampling)
        for place in range(len(text))
    )
    return float(sum(row[token] for row, token in zip(rows, text, strict=True)))


@pytest.fixture(scope="module")
def safe_log_probs(four_tokens):
    """log P_s of every text, by the place among SAMPLING of how it is sampled."""
    return [
        np.array([safe_log_prob(four_tokens.safe, text, sampling) for text in TEXTS])
        for sampling in SAMPLING
    ]


def nats_apart(probs, ratios, divergence) -> float:
    """The divergence of a distribution from the safe model's, in 80 bits."""
    probs, ratios = (x[probs > 0].astype(np.longdouble) for x in (probs, ratios))
    return float((probs * ratios).sum() if divergence == "kl" else ratios.max())


@pytest.mark.sampled(5)
@pytest.mark.parametrize("sampling", range(len(SAMPLING)))
@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
@pytest.mark.parametrize("kind", [Anchored, NoOpt])
def test_no_distribution_of_texts_leaves_its_bound(
    four_tokens, safe_log_probs, kind, budget, divergence, sampling
):
    rule, safe = kind(divergence=divergence, **budget), safe_log_probs[sampling]
    decoder = Decoder(four_tokens, rule, batch_size=len(TEXTS))
    scores = decoder.score([PROMPT] * len(TEXTS), TEXTS, horizon=HORIZON, **SAMPLING[sampling])
    star, bound = np.array([score.log_prob for score in scores]), scores[0].bound
    is_possible = star > -np.inf
    assert np.isfinite(safe[is_possible]).all()  # never a text that the safe model cannot write
    probs, ratios = (
        np.exp(star),
        np.where(is_possible, star, 0.0) - np.where(is_possible, safe, 0.0),
    )
    assert abs(probs.sum() - 1.0) < 1e-7  # a clipped one may miss 1e-9 of its mass at each step
    assert nats_apart(probs, ratios, divergence) <= bound + ORACLE_ERROR
    # Nor does the chance of any one text leave that of its event.
    for prob, safe_log_prob in zip(probs[::7], safe[::7], strict=True):
        most = event_bound(bound, min(0.0, safe_log_prob), divergence=divergence)
        assert prob <= most + ORACLE_ERROR


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_no_event_leaves_what_the_ledger_of_any_text_in_pieces_says(four_tokens, divergence):
    """Whatever was drawn before: the debts of the pieces, and so their bounds, differ by it."""
    rule, probs, ledgers = Anchored(k=0.8, divergence=divergence), {}, []
    decoder = Decoder(four_tokens, rule)
    pieces = [([], 0.0, {"prompts": PROMPT})]
    for place in range(3):
        following = []
        for text, log_prob, source in pieces:
            (result,) = decoder.generate(**source, max_new_tokens=1, **WARPED)
            (step,), begun = result.ledger.steps, [PROMPT + text] * 4
            scores = decoder.score(begun, [[token] for token in range(4)], horizon=1)
            for token, score in enumerate(scores):
                piece = [*text, token], log_prob + score.log_prob
                drawn = replace(
                    result.ledger, steps=[replace(step, token_id=token)], finish_reason="length"
                )
                if token == 1 or place == 2:
                    probs[tuple(piece[0])] = math.exp(piece[1])
                else:
                    following.append((*piece, {"continue_from": drawn}))
            ledgers += [result.ledger] * (place == 2)
        pieces = following
    assert sum(probs.values()) == pytest.approx(1.0, abs=1e-7)
    assert len({ledger.header.bound for ledger in ledgers}) > 1
    safe = {text: math.exp(safe_log_prob(four_tokens.safe, list(text), {})) for text in probs}
    raised = sorted(probs, key=lambda text: safe[text] / probs[text])
    for number in range(1, len(raised)):
        for event in (raised[:number], raised[number - 1 : number]):
            prob, safe_prob = (sum(of[text] for text in event) for of in (probs, safe))
            for ledger in ledgers:
                assert prob <= ledger.event_bound(math.log(safe_prob)) + ORACLE_ERROR


@pytest.mark.parametrize(("divergence", "bank"), [("kl", 0.3), ("max", 0.0)])
def test_with_a_bank_no_steps_in_a_row_leave_their_bound_after_any_beginning(
    four_tokens, divergence, bank
):
    k = 0.5
    rule = Anchored(k=k, bank=bank, debt="none", divergence=divergence)
    decoder = Decoder(four_tokens, rule, batch_size=len(TEXTS))
    scores = decoder.score([PROMPT] * len(TEXTS), TEXTS, horizon=HORIZON)
    star, safe = np.zeros((len(TEXTS), HORIZON)), np.zeros((len(TEXTS), HORIZON))
    for index, score in enumerate(scores):  # nothing follows the end of a text
        star[index, : len(score.token_ids)] = score.token_log_probs
        safe[index, : len(score.token_ids)] = score.safe_token_log_probs
    is_tight = False
    for start in range(HORIZON):
        for width in range(1, HORIZON - start + 1):
            texts: dict[tuple, dict[tuple, int]] = {}
            for index, text in enumerate(TEXTS):
                window = tuple(text[start : start + width])
                texts.setdefault(tuple(text[:start]), {}).setdefault(window, index)
            for windows in texts.values():
                rows, columns = list(windows.values()), slice(start, start + width)
                log_probs, safe_log_probs = (x[rows, columns].sum(-1) for x in (star, safe))
                nats = nats_apart(np.exp(log_probs), log_probs - safe_log_probs, divergence)
                assert nats <= bank + width * k + ORACLE_ERROR
                is_tight |= nats > 0.8 * (bank + width * k)
    assert is_tight
