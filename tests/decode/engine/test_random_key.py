"""Other prompts, seeds and places have other uniforms, and ledgers say which."""

import dataclasses
import hashlib

import pytest
import torch
from drawn_tokens import follows
from tiny_models import tiny_llama, word_tokenizer

from anchored import Anchored, Decoder, ModelPair, SafeOnly, verify
from anchored.decode.engine.request import random_key, recorded_key

VOCAB_SIZE = 6
"""So few words that pairs of them can be counted."""
PROMPT = [0, 3, 5, 2]
SAMPLING = {"temperature": 4.0, "repetition_penalty": 1.0}
"""So hot that every pair of words is common enough for a chi-square test."""
NUM_CONVERSATIONS = 500


def test_two_turns_without_a_budget_have_the_safe_models_joint_distribution():
    """Each conversation has two calls of one seed; the second reads what the first has written."""
    models = [tiny_llama(seed, vocab_size=VOCAB_SIZE, layers=1) for seed in (1, 2)]
    word_pair = ModelPair(*models, word_tokenizer(VOCAB_SIZE))
    decoder = Decoder(word_pair, SafeOnly(), batch_size=250)
    settings = {"max_new_tokens": 1, "seed": range(NUM_CONVERSATIONS), **SAMPLING}
    first = decoder.generate([PROMPT] * NUM_CONVERSATIONS, **settings)
    second = decoder.generate([PROMPT + turn.token_ids for turn in first], **settings)
    texts = torch.tensor([[*PROMPT, token] for token in range(VOCAB_SIZE)])
    with torch.inference_mode():
        probs = (word_pair.safe(texts).logits / SAMPLING["temperature"]).softmax(-1)
    joint = probs[0, -2][:, None] * probs[:, -1]  # p_s(first) p_s(second | first)
    assert joint.min() * NUM_CONVERSATIONS > 5.0
    drawn = [torch.tensor([turn.token_ids for turn in turns])[:, 0] for turns in (first, second)]
    assert follows(VOCAB_SIZE * drawn[0] + drawn[1], joint.flatten())


def test_the_key_of_a_request_never_changes():
    """Ledgers are replayed by it; computed with hashlib by hand."""
    digest = hashlib.sha256(b"".join(n.to_bytes(8, "little") for n in (5, 6, 300))).hexdigest()
    named = hashlib.sha256(f"coupled/2 7 token {digest} 2".encode()).digest()
    expected = int.from_bytes(named[:8], "big") // 2
    assert expected == 591338149324793650
    assert random_key(7, [5, 6, 300], level="token", place=2) == expected


def test_equal_prompts_samples_and_neighboring_seeds_are_drawn_apart(pair):
    decoder = Decoder(pair, Anchored(k=1.0))
    equal = decoder.generate(["salt"] * 3, max_new_tokens=8)
    samples = decoder.generate("salt", max_new_tokens=8, num_return_sequences=3)
    next_seed = decoder.generate("salt", max_new_tokens=8, seed=1, num_return_sequences=3)
    drawn = [
        [(recorded_key(result.ledger.header), tuple(result.token_ids)) for result in results]
        for results in (equal, samples, next_seed)
    ]
    assert drawn[0] == drawn[1]
    for keys_or_tokens in zip(*drawn[1], *drawn[2], strict=True):
        assert len(set(keys_or_tokens)) == 6
    options = {"max_new_tokens": 1, "seed": [0, 0, 1, 0], "num_return_sequences": 2}
    results = decoder.generate(["salt", "math", "salt", "salt"], **options)
    places = [result.ledger.header.stream["place"] for result in results]
    assert places == [0, 1, 0, 1, 0, 1, 2, 3]


def test_a_stream_that_a_ledger_cannot_have_is_refused(pair):
    (result,) = Decoder(pair, Anchored(k=1.0)).generate("salt", max_new_tokens=9)
    header = result.ledger.header
    for change, message in [
        ({"sampler": "coupled/1"}, "sampler must be coupled/2, got 'coupled/1'"),
        ({"stream": {"prompt_sha256": "", "place": -1}}, "must have a place, .* got -1"),
        ({"prompt_token_ids": [5, 6]}, "does not follow from the header's prompt"),
    ]:
        with pytest.raises(ValueError, match=message):
            recorded_key(dataclasses.replace(header, **change))
    other = dataclasses.replace(header, stream={**header.stream, "place": 1})
    forged = dataclasses.replace(result.ledger, header=other)
    assert "the seed gives another token" in verify(forged, pair).failures[0]
