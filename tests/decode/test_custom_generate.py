"""CustomGenerate inside generate of transformers: the tokens of a Decoder, or a refusal by name."""

import pytest
import torch
from tiny_models import train_tokenizer
from transformers import DynamicCache, set_seed
from transformers.generation import (
    MaxLengthCriteria,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from anchored import CustomGenerate, Decoder, Pathwise, verify
from anchored.decode.streams.stream import CACHE

PROMPTS = ["the keeper", "every wave into the ledger"]


@pytest.fixture
def decoder(pair):
    return Decoder(pair, Pathwise())


@pytest.fixture
def inputs():
    """Two prompts of different lengths, padded to the left."""
    tokenizer = train_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer(PROMPTS, return_tensors="pt", padding=True, padding_side="left")


@pytest.mark.parametrize(
    ("options", "sampling"),
    [
        ({}, {"temperature": 1.0, "repetition_penalty": 1.0, "top_k": 50}),
        (
            {"temperature": 0.8, "repetition_penalty": 1.2, "top_k": 0, "top_p": 0.9, "min_p": 0.1},
            {"temperature": 0.8, "repetition_penalty": 1.2, "top_p": 0.9, "min_p": 0.1},
        ),
    ],
    ids=["defaults", "all"],
)
def test_its_tokens_are_those_of_the_decoder(decoder, inputs, options, sampling):
    custom = CustomGenerate(decoder, seed=5)
    options |= {"do_sample": True, "max_new_tokens": 8, "num_return_sequences": 2}
    ids = decoder.pair.risky.generate(**inputs, custom_generate=custom, **options)
    expected = decoder.generate(
        PROMPTS, max_new_tokens=8, num_return_sequences=2, seed=5, **sampling
    )
    width = inputs["input_ids"].shape[1]
    assert ids[:, :width].tolist() == inputs["input_ids"].repeat_interleave(2, 0).tolist()
    for row, result, generation in zip(ids, expected, custom.generations, strict=True):
        new = row[width:].tolist()
        assert new[: len(result.token_ids)] == result.token_ids == generation.token_ids
        assert set(new[len(result.token_ids) :]) <= {decoder.pair.tokenizer.eos_token_id}
        assert generation.ledger.certified and generation.ledger.header.num_return_sequences == 2
    assert verify(custom.generations[0].ledger, decoder.pair).failures == []


def test_a_seed_comes_from_torch_unless_given(decoder, inputs):
    drawn = []
    for seed in (1, 1, 2):
        set_seed(seed)
        custom = CustomGenerate(decoder)
        decoder.pair.risky.generate(
            **inputs, custom_generate=custom, do_sample=True, max_new_tokens=2
        )
        drawn.append(custom.generations[0].ledger.header.seed)
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 2}, "the mode beam_sample"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate"),
        ({"num_return_sequences": 0}, "num_return_sequences must be >= 1, got 0"),
        ({"max_time": 1.0}, "MaxTimeCriteria"),
        ({"eos_token_id": 7}, r"eos_token_id=\[7\]: a text ends at .* \[1\]"),
        (
            {"logits_processor": [RepetitionPenaltyLogitsProcessor(1.3, prompt_ignore_length=2)]},
            "RepetitionPenaltyLogitsProcessor is not supported with another prompt_ignore_length",
        ),
        (
            {"top_k": 0, "logits_processor": [TopPLogitsWarper(0.5), TopKLogitsWarper(3)]},
            "TopKLogitsWarper is not supported here, or not after a later one",
        ),
        ({CACHE: None}, "does not honor (past_key_values|cache)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_honored_is_refused_by_name(decoder, inputs, options, message):
    if CACHE in options:
        first = decoder.pair.risky(**inputs)
        options = {CACHE: first.past_key_values}
        inputs = {"input_ids": inputs["input_ids"].repeat(1, 2)}
    options |= {"custom_generate": CustomGenerate(decoder), "do_sample": True, "max_new_tokens": 2}
    with pytest.raises(ValueError, match=message):
        decoder.pair.risky.generate(**{**inputs, **options})


def test_what_says_what_happens_anyway_is_taken(decoder, inputs):
    custom = CustomGenerate(decoder)
    width = inputs["input_ids"].shape[1]
    options = {"eos_token_id": torch.tensor([1]), "top_k": 0, CACHE: DynamicCache()}
    ids = decoder.pair.risky.generate(
        **inputs,
        **{"custom_generate": custom, "do_sample": True, "max_new_tokens": 2, **options},
        stopping_criteria=[MaxLengthCriteria(width + 2)],
        logits_processor=[TopPLogitsWarper(0.5)],
    )
    assert ids.shape == (2, width + 2)
    assert custom.generations[0].ledger.header.sampling["top_p"] == 0.5
