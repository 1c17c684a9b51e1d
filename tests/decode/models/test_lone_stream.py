"""Models that batches would get wrong decode one text at a time, by the cache that they make."""

import itertools

import pytest
from model_zoo import zoo_model, zoo_pair
from plain_forward import plain_log_probs
from tiny_models import tiny_family, tiny_llama

from anchored import Anchored, Decoder, ModelPair, verify

PROMPTS = [[0, 5, 9, 33, 7, 8, 41, 22, 17], [0, 12, 60], [0, 7]]
ALONE = ["mamba2", "rwkv", "jamba", "recurrent_gemma"]


@pytest.fixture(scope="module", params=ALONE)
def lone_pair(request) -> ModelPair:
    return zoo_pair(zoo_model(request.param, 1))


def recorded(result) -> list[float]:
    return [step.safe_log_prob for step in result.ledger.steps]


def test_texts_are_the_same_together_alone_scored_and_streamed_by_turns(lone_pair):
    decoder = Decoder(lone_pair, Anchored(k=1.0))
    settings = {"max_new_tokens": 6, "temperature": 1.0, "repetition_penalty": 1.0}
    together = decoder.generate(PROMPTS, **settings)
    scores = decoder.score(PROMPTS, [result.token_ids for result in together], k=1.0)
    streams = [decoder.stream(prompt, **settings) for prompt in PROMPTS]
    spends: list[list[float]] = [[] for _ in PROMPTS]
    for _ in range(6):
        for spent, stream in zip(spends, streams, strict=True):
            spent += [piece.spend for piece in itertools.islice(stream, 1)]
    for i, (prompt, result) in enumerate(zip(PROMPTS, together, strict=True)):
        (alone,) = decoder.generate([prompt], **settings)
        assert result.token_ids == alone.token_ids and recorded(result) == recorded(alone)
        assert spends[i] == [step.spend for step in result.ledger.steps]
        plain = plain_log_probs(lone_pair, result.ledger)
        assert scores[i].safe_token_log_probs == pytest.approx(plain, abs=1e-4, rel=0)
        assert verify(result.ledger, lone_pair).is_ok
    assert sum(map(sum, spends)) > 0


def test_llama4_texts_of_unequal_lengths_beyond_its_reach_decode_alone(tokenizer):
    models = (tiny_family("llama4_text", 1).float(), tiny_llama(2).float())
    pair = ModelPair(*models, tokenizer)
    prompts = [[0, *range(5, 40)], [0, *range(7, 18)]]  # rows of up to 39 tokens share a forward
    decoder = Decoder(pair, Anchored(k=1.0))
    results = decoder.generate(prompts, max_new_tokens=30)
    for prompt, result in zip(prompts, results, strict=True):
        (alone,) = decoder.generate([prompt], max_new_tokens=30)
        assert result.token_ids == alone.token_ids
        plain = plain_log_probs(pair, result.ledger)
        assert recorded(result) == pytest.approx(plain, abs=1e-4, rel=0)
