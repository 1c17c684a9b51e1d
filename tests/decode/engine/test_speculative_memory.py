"""Drafts that are rejected leave nothing: their memories, ends and NaN reach no token."""

import math

import pytest
import torch
from tiny_models import TEXT, tiny_family, tiny_llama

from anchored import Anchored, Decoder, ModelPair
from anchored.decode.engine.request import Request
from anchored.decode.engine.speculative_batch import SpeculativeBatch
from anchored.decode.levels.level import TokenLevel
from anchored.decode.settings import SamplingConfig
from anchored.decode.streams.capabilities import row_attention
from anchored.decode.streams.row_stream import ModelRunner, RowStream


def open_batch(pair, gamma, *, num_rows=1, max_length=110, batch_class=SpeculativeBatch):
    level = TokenLevel(pair)
    return batch_class(
        level,
        Anchored(k=1.0).open(level),
        SamplingConfig(),
        num_rows=num_rows,
        max_length=max_length,
        draft_length=gamma,
    )


def request_of(pair, text: str, num_tokens: int, **settings) -> Request:
    return Request(prompt_token_ids=pair.encode(text), max_new_tokens=num_tokens, **settings)


@pytest.mark.parametrize("place", [0, 3])
def test_an_end_symbol_in_a_draft_ends_the_text_only_if_it_is_kept(pair, place):
    """Guesses are free: an end symbol is guessed at one place, whatever the safe model says."""

    class EndGuesser(SpeculativeBatch):
        def _guessed(self, inputs):
            guess = super()._guessed(inputs)
            return torch.ones_like(guess) if len(self._drafts[0]) == place else guess

    same = ModelPair(pair.safe, pair.safe, pair.tokenizer)
    (plain,) = Decoder(same, Anchored(k=1.0)).generate(TEXT[0], max_new_tokens=12)
    batch = open_batch(same, 4, batch_class=EndGuesser)
    (state,) = batch.admit([request_of(same, TEXT[0], 12)])
    while not state.is_finished:
        batch.step()
    assert [step.token_id for step in state.steps] == plain.token_ids
    assert state.num_accepted < state.num_drafted


@pytest.mark.parametrize("family", ["llama", "qwen2, sliding", "llama4_text"])
def test_a_draft_changes_no_distribution_at_or_before_it_bitwise(family):
    model = tiny_family(family, 1)
    runner = ModelRunner(model, 320)
    stream = RowStream(runner, row_attention(model), num_rows=2, max_length=30)
    stream.read([[5, 9, 11], [4, 4, 8, 2, 6]], [0, 1])
    drafts = [[7, 31, 150, 8], [99, 3, 17, 60]]
    logits = stream.feed([0, 1], drafts, 4)
    for place in range(4):
        for row, length in ((0, 3), (1, 5)):
            stream.roll_back(row, length)
        changed = [[*draft[:place], 200, *draft[place + 1 :]] for draft in drafts]
        again = stream.feed([0, 1], changed, 4)
        assert torch.equal(again[:, :place], logits[:, :place])
        assert not torch.equal(again[:, place], logits[:, place])


def test_nan_after_a_rejection_is_ignored(tokenizer):
    """A token that breaks one model is guessed: it is rejected, and its traces are wiped out."""

    class BadGuesser(SpeculativeBatch):
        def _guessed(self, inputs):
            guess = super()._guessed(inputs)
            return torch.full_like(guess, 300) if len(self._drafts[0]) == 1 else guess

    texts = ["salt", TEXT[1]]  # what the shorter row left lies among the longer one's
    for name in ("safe", "risky"):
        models = {"safe": tiny_llama(1), "risky": tiny_llama(2, layers=3)}
        sound = ModelPair(*models.values(), tokenizer)
        plain = Decoder(sound, Anchored(k=1.0)).generate(texts, max_new_tokens=12)
        models[name].model.embed_tokens.weight.data[300] = math.nan
        pair = ModelPair(*models.values(), tokenizer)
        batch = open_batch(pair, 3, num_rows=2, batch_class=BadGuesser)
        states = batch.admit([request_of(sound, text, 12) for text in texts])
        while not batch.is_empty:
            batch.step()
        for state, expected in zip(states, plain, strict=True):
            assert not state.error
            assert [step.token_id for step in state.steps] == expected.token_ids
            assert 300 not in expected.token_ids


@pytest.mark.parametrize("name", ["safe", "risky"])
def test_nan_that_is_reached_fails_the_request_alone(tokenizer, name):
    models = {"safe": tiny_llama(1), "risky": tiny_llama(2, layers=3)}
    (plain,) = Decoder(ModelPair(*models.values(), tokenizer), Anchored(k=1.0)).generate(
        TEXT[1], max_new_tokens=12
    )
    models[name].model.embed_tokens.weight.data[plain.token_ids[4]] = math.nan
    pair = ModelPair(*models.values(), tokenizer)
    for speculate in ("off", 3):
        decoder = Decoder(pair, Anchored(k=1.0), speculate=speculate)
        (failed,) = decoder.generate([TEXT[1]], max_new_tokens=12)
        assert failed.token_ids == plain.token_ids[:5]
        assert f"the {name} model's logits at step 5 are NaN" in failed.error
