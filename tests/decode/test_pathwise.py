"""Pathwise budgets: whole texts enumerated against an oracle, and texts that were drawn.

The safe model's probabilities come from plain forwards and numpy alone, p* from `Decoder.score`.
"""

import itertools
from functools import cache

import numpy as np
import pathwise_oracle as oracle
import pytest
import torch
from drawn_tokens import follows
from tiny_models import every_text, tiny_llama, word_tokenizer

from anchored import Decoder, ModelPair, Pathwise
from anchored.kernels.spend import SPEND_QUANTUM

PROMPT = [0, 2, 3, 2]
PROMPTS = {2: [0, 0, 0]}
"""By the size of the vocabulary, where that is no larger; else it is PROMPT."""
ROUNDING = 1e-11
"""Nats of a text: float64 log-probabilities, taken from logits up to some hundreds."""
KEPT_BACK = 5e-8
"""The project's p* is a little less than the bucket allows: 2e-9 nats and some quanta a step."""


@cache
def tiny_pair(
    seed: int, vocab_size: int, safe_scale: float, risky_scale: float, other_end: int | None = None
) -> ModelPair:
    """Models whose logits are scaled: the larger, the surer they are. other_end: a token at which
    the risky model ends a text too."""
    sizes = {"vocab_size": vocab_size, "layers": 1, "hidden_size": 16, "intermediate_size": 16}
    safe, risky = (tiny_llama(2 * seed + i, **sizes) for i in (0, 1))
    safe.lm_head.weight.data *= safe_scale
    risky.lm_head.weight.data *= risky_scale
    if other_end is not None:
        risky.generation_config.eos_token_id = [1, other_end]
    return ModelPair(safe, risky, word_tokenizer(vocab_size))


def prompt_of(pair: ModelPair) -> list[int]:
    return PROMPTS.get(pair.vocab_size, PROMPT)


def log_probs_of(pair: ModelPair, horizon: int, sampling: dict):
    """A function of beginnings of texts: log p_r and log p_s of the next token, (V,) both."""
    ends, places, prompt = pair.stop_token_ids, {}, prompt_of(pair)
    words = [word for word in range(pair.vocab_size) if word not in ends]
    longest = list(itertools.product(words, repeat=horizon - 1))
    for row, text in enumerate(longest):
        places.update({text[:end]: row for end in range(horizon)})
    tokens = torch.tensor([[*prompt, *text] for text in longest])
    with torch.no_grad():
        logits = [model(tokens).logits.numpy() for model in (pair.risky, pair.safe)]

    def log_probs(begun: tuple[int, ...]):
        place, text = (places[begun], len(prompt) + len(begun) - 1), [*prompt, *begun]
        return tuple(oracle.warped(x[place], text, ends=ends, **sampling) for x in logits)

    return log_probs


PAIRS = {
    "surer risky": (5, 1.0, 6.0),
    "sure models": (5, 3.0, 3.0),
    "surer safe": (5, 4.0, 1.0),
    "vague models": (5, 1.0, 2.0),
    "two ends": (5, 1.0, 4.0, 3),
    "two tokens": (2, 1.0, 3.0),
}
TRUNCATED = {"top_k": 3, "temperature": 0.9, "top_p": 0.99, "min_p": 0.05}
CASES = [
    ("surer risky", 5, Pathwise(k=0.3, bank=1.0, debt="none"), {}),
    ("surer risky", 5, Pathwise(k=0.2, bank=2.0), {}),
    ("surer risky", 5, Pathwise(k=0.5, bank=0.2), {}),  # a debt above the bank
    ("surer risky", 5, Pathwise(k=0.5, bank=2.0, debt="average", debt_window=1), {}),
    ("surer risky", 5, Pathwise(k=0.0, bank=4.0, debt="none"), {}),
    ("surer risky", 5, Pathwise(k=0.3, bank=3000.0, debt="none"), {}),
    ("sure models", 5, Pathwise(k=0.5, bank=3.0, debt="top", debt_window=2), {}),
    ("sure models", 5, Pathwise(k=0.2, bank=1.0, debt="none"), {"temperature": 0.05}),
    ("surer safe", 5, Pathwise(k=0.1, bank=0.5, debt="none"), {}),
    ("vague models", 5, Pathwise(k=0.1, bank=0.3), {"temperature": 0.7, "repetition_penalty": 1.2}),
    ("vague models", 5, Pathwise(k=0.0, bank=3.0, debt="none"), TRUNCATED),
    ("two ends", 6, Pathwise(k=0.2, bank=2.5), {"top_k": 4, "repetition_penalty": 1.1}),
    ("two tokens", 6, Pathwise(k=0.1, bank=0.5, debt="none"), {}),
]
"""A pair, the horizon, the rule, the warpers."""


def padded(rows: list[list[float]]) -> np.ndarray:
    """(N, H) float64, 0 after the end of a row."""
    longest = max(map(len, rows))
    return np.array([[*row, *[0.0] * (longest - len(row))] for row in rows])


def share_used(name: str, horizon: int, rule: Pathwise, sampling: dict, seed: int) -> float:
    """The largest log P* / P_s of a text as a share of its bound, once all texts were looked at."""
    pair = tiny_pair(seed, *PAIRS[name])
    prompt, ends, models = prompt_of(pair), pair.stop_token_ids, (pair.safe, pair.risky)
    texts = every_text([t for t in range(pair.vocab_size) if t not in ends[1:]], horizon)
    # 1. What the oracle says of each text.
    debt = oracle.prefix_debt(
        models, prompt, pair.tokenizer.all_special_ids, mode=rule.debt, window=rule.debt_window
    )
    bucket = {"k": rule.k, "bank": rule.bank, "debt": debt}
    node = oracle.nodes_of(log_probs_of(pair, horizon, sampling), **bucket)
    expected, safe = oracle.figures_of(node, texts)
    # 2. What the project says.
    decoder = Decoder(pair, rule, batch_size=len(texts))
    scores = decoder.score([prompt] * len(texts), texts, horizon=horizon, **sampling)
    star, spends = (padded([getattr(s, n) for s in scores]) for n in ("token_log_probs", "spends"))
    assert scores[0].debt == pytest.approx(debt, abs=1e-12)
    assert scores[0].bound == pytest.approx(max(0, rule.bank + rule.k * horizon - debt), abs=1e-12)
    # 3. Both name the same distribution of texts.
    probs = np.exp(star.sum(1))
    assert np.abs(probs - np.exp(expected.sum(1))).max() < KEPT_BACK
    assert abs(probs.sum() - 1.0) < 1e-7
    # 4. The bounds, by the project's p*. A token costs what it has become likelier by, rounded up.
    prefix, window, share = oracle.excesses(star, safe, **bucket)
    assert max(prefix, window) <= ROUNDING
    is_possible = np.isfinite(star.cumsum(1))  # after a token that p* cannot draw nothing counts
    costs = (spends - star + safe)[is_possible]
    assert costs.min() >= -ROUNDING and costs.max() < KEPT_BACK
    return share


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("seed", range(8, 10))
def test_no_prefix_and_no_window_of_any_text_leaves_its_bound(case, seed):
    share_used(*case, seed)


def test_some_text_uses_all_of_its_bound():
    assert share_used(*CASES[4], 8) > 1.0 - 1e-8


DRAWN = {"max_new_tokens": 4, "temperature": 1.0, "repetition_penalty": 1.0}
RULE = Pathwise(k=0.3, bank=1.0, debt="none")


def test_texts_are_drawn_as_often_as_the_oracle_says():
    """And the ledger of each says what it has become likelier by, never less."""
    pair, number = tiny_pair(8, *PAIRS["surer risky"]), 1500
    texts = every_text(range(pair.vocab_size), DRAWN["max_new_tokens"])
    node = oracle.nodes_of(
        log_probs_of(pair, DRAWN["max_new_tokens"], {}), k=RULE.k, bank=RULE.bank, debt=0.0
    )
    star, safe = oracle.figures_of(node, texts)
    decoder = Decoder(pair, RULE, batch_size=512)
    results = decoder.generate([PROMPT] * number, seed=range(number), **DRAWN)
    place_of = {tuple(text): place for place, text in enumerate(texts)}
    places = [place_of[tuple(result.token_ids)] for result in results]
    assert follows(torch.tensor(places), torch.from_numpy(np.exp(star.sum(1)).astype(np.float64)))
    ratios = (star - safe)[places].sum(1)
    spent = np.array([result.ledger.spent for result in results])
    assert np.abs(spent - ratios).max() < KEPT_BACK
    for ledger in (result.ledger for result in results):
        assert ledger.certified
        for step in ledger.steps:
            assert step.spend >= step.log_prob - step.safe_log_prob
            assert (step.spend / SPEND_QUANTUM).is_integer()
    assert spent.min() < -0.5 and spent.max() > 0.9 * (RULE.bank + 4 * RULE.k)
