"""Speculative decoding has the law of plain decoding: all texts enumerated, in float64.

Nine wrong variants, each a small change of the batch under test or of the draw, are told apart.
"""

import itertools
from dataclasses import replace

import pytest
import torch
from round_enumeration import Enumeration, ScriptedBatch, ScriptedRule
from tiny_models import tiny_llama, word_tokenizer

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


def texts(vocab_size: int, horizon: int, end: int = 1) -> list[list[int]]:
    """All texts up to the horizon or the end symbol."""
    others = [token for token in range(vocab_size) if token != end]
    ended = [[*head, end] for n in range(horizon) for head in itertools.product(others, repeat=n)]
    return ended + [list(text) for text in itertools.product(others, repeat=horizon)]


def plain_law(pair, rule, horizon, sampling):
    """(probability of every text, expected spend) by scoring texts, teacher forced."""
    every = texts(pair.vocab_size, horizon)
    decoder = Decoder(pair, rule, batch_size=len(every))
    scores = decoder.score([[0]] * len(every), every, horizon=horizon, **sampling.as_dict())
    probs = torch.tensor([score.log_prob for score in scores], dtype=torch.float64).exp().tolist()
    law = {tuple(text): prob for text, prob in zip(every, probs, strict=True)}
    return law, sum(p * score.spend for p, score in zip(probs, scores, strict=True))


def errors(pair, rule, *, gamma, horizon, sampling=None, batch_class=ScriptedBatch):
    """(largest difference of a text's probability, difference of the expected spends)."""
    sampling = sampling or SamplingConfig(temperature=1.0, repetition_penalty=1.0)
    enumeration = Enumeration(
        pair=pair,
        rule=rule,
        gamma=gamma,
        horizon=horizon,
        batch_class=batch_class,
        sampling=sampling,
    )
    law, spend = enumeration.law()
    expected, expected_spend = plain_law(
        pair, ScriptedRule(rule.rule, rule.debt), horizon, sampling
    )
    assert set(law) <= set(expected)
    difference = max(abs(law.get(text, 0.0) - prob) for text, prob in expected.items())
    return difference, abs(spend - expected_spend)


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


class BanksRejectedDrafts(ScriptedBatch):
    def _forget_rejected(self, row, laws, num_kept):
        state, drafts = self._state(row), self._drafts[row]
        for place in range(num_kept + 1, len(drafts)):
            if not state.is_finished:
                self._logits["safe"][row] = drafts[place].safe_logits
                self._logits["risky"][row] = laws[place]
                inputs = replace(self._inputs([row], self._seen), uniform=None)
                state.spent += self.rule.rule.next_token(inputs).spend.item()
                self._count_budgets([row])
        super()._forget_rejected(row, laws, num_kept)


class RoundStart(ScriptedBatch):
    """Remembers how rows stood when the round began."""

    def step(self):
        self.spent = {r: s.spent for r, s in enumerate(self._states) if s is not None}
        self.num_steps = {r: len(s.steps) for r, s in enumerate(self._states) if s is not None}
        return super().step()

    def _inputs(self, rows, seen):
        nats = [self.stale_allowance(row, self._state(row)) for row in rows]
        return replace(super()._inputs(rows, seen), budget=torch.tensor(nats, dtype=torch.float64))


class UsesOneStaleBudget(RoundStart):
    def stale_allowance(self, row, state):
        return state.budget.allowance(self.num_steps[row], self.spent[row])


class BanksAfterTheRound(RoundStart):
    def stale_allowance(self, row, state):
        return state.budget.allowance(len(state.steps), self.spent[row])


class SkipsRejectedPositions(ScriptedBatch):
    def _bank_draw(self, row, drawn):
        super()._bank_draw(row, drawn)
        self._state(row).spent -= 0.0 if drawn.accepted else drawn.spend


class SkipsTheBonus(ScriptedBatch):
    def _draw(self, rows):
        super()._draw(rows)
        for row in rows:
            state = self._state(row)
            state.spent -= state.steps[-1].spend
        self._count_budgets(rows)


class DrawsTheBonusFromTheRiskyModel(ScriptedBatch):
    def _inputs(self, rows, seen):
        inputs = super()._inputs(rows, seen)
        if not self.rule.is_direct or not self._state(rows[0]).steps:
            return inputs
        return replace(inputs, budget=torch.full_like(inputs.budget, 1e6))


class DropsUnlikelyDrafts(ScriptedBatch):
    def _guessed(self, inputs):
        drafts = super()._guessed(inputs)
        safe = inputs.warped("safe").softmax(-1)
        paths = (inputs.uniform[:, 2] // 64).long().tolist()
        has_drafts = torch.tensor([bool(self._drafts[path]) for path in paths])
        return drafts.masked_fill((self.rule.of(safe, drafts) < 0.25) & has_drafts, -1)


class ResamplesTheWholeLaw(ScriptedRule):
    def replacement_law(self, star, safe):
        return star


class DraftsFromAnotherLaw(ScriptedRule):
    def draft_law(self, safe):
        return safe.log().mul(1.3).softmax(-1)


WRONG_BATCHES = [
    (BanksRejectedDrafts, 2, 3),
    (UsesOneStaleBudget, 2, 3),
    (BanksAfterTheRound, 2, 3),
    (SkipsRejectedPositions, 2, 3),
    (SkipsTheBonus, 1, 4),  # a bonus is the third token at the earliest, and the fourth shows it
    (DrawsTheBonusFromTheRiskyModel, 1, 3),
    (DropsUnlikelyDrafts, 2, 3),
]


@pytest.mark.parametrize(("wrong", "gamma", "horizon"), WRONG_BATCHES)
def test_a_wrong_walk_is_told_apart(four_tokens, wrong, gamma, horizon):
    rule = ScriptedRule(Anchored(k=K), DEBT)
    assert errors(four_tokens, rule, gamma=gamma, horizon=horizon, batch_class=wrong)[0] > 1e-4


@pytest.mark.parametrize("wrong", [ResamplesTheWholeLaw, DraftsFromAnotherLaw])
def test_a_wrong_draw_is_told_apart(four_tokens, wrong):
    rule = wrong(Anchored(k=K), DEBT)
    assert errors(four_tokens, rule, gamma=2, horizon=3)[0] > 1e-4
