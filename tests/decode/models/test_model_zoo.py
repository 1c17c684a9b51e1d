"""Models of sixty families: what their ledgers record is the plain forward, or they are refused."""

import pytest
import torch
from model_zoo import FAMILIES, zoo_model, zoo_pair
from plain_forward import plain_log_probs

from anchored import Anchored, Decoder

PROMPTS = [[0, 5, 9, 33, 7, 8, 41, 22, 17], [0, 12, 60]]

ALONE = (
    "openai-gpt",
    "llama4_text",
    "bart",
    "mamba",
    "mamba2",
    "falcon_mamba",
    "rwkv",
    "recurrent_gemma",
    "jamba",
    "minimax",
)
"""Families that left-padded batches would get wrong."""

REFUSED = {
    "bert": "it is not causal: without what follows its log-probabilities are off by",
    "xlnet": "it is not causal: without what follows its log-probabilities are off by",
    "zamba2": "alone its log-probabilities are off by 0.00",
    "xlstm": "alone it fails with ValueError: matC_old has wrong shape",
}
"""Why a family may be refused; those that fail alone do so in transformers 5.23."""


QUICK = ("llama", "gpt2", "bloom", "openai-gpt", "bert")
"""Of the families made with sizes alone; the others of these run among the slow tests."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=[] if made_with or family in QUICK else pytest.mark.slow)
        for family, made_with in FAMILIES.items()
    ],
)
@torch.inference_mode()
def test_the_recorded_law_is_that_of_the_plain_forward_or_the_model_is_refused(family):
    try:
        pair = zoo_pair(zoo_model(family, 1))
    except ValueError as refusal:
        title = f"the safe model ({family}) cannot be decoded: "
        assert str(refusal).startswith(title + REFUSED[family]) and "\n" not in str(refusal)
        return
    assert pair.decodes_alone["safe"] == (family in ALONE)
    for result in Decoder(pair, Anchored(k=0.5)).generate(PROMPTS, max_new_tokens=4):
        recorded = [step.safe_log_prob for step in result.ledger.steps]
        assert result.ledger.certified and len(recorded) == 4
        assert recorded == pytest.approx(plain_log_probs(pair, result.ledger), abs=1e-4, rel=0)


def test_texts_end_where_long_rotary_embeddings_change_their_angles():
    angles = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "rope_theta": 10_000.0}
    rotary = {"rope_type": "longrope", **angles, "factor": 4.0}
    safe = zoo_model("phi3", 1, rope_parameters=rotary, original_max_position_embeddings=16)
    pair = zoo_pair(safe)
    decoder = Decoder(pair, Anchored(k=0.5))
    (result,) = decoder.generate(PROMPTS[:1], max_new_tokens=7)
    recorded = [step.safe_log_prob for step in result.ledger.steps]
    assert recorded == pytest.approx(plain_log_probs(pair, result.ledger), abs=1e-4, rel=0)
    with pytest.raises(ValueError, match="it exceeds the pair's context of 16"):
        decoder.generate(PROMPTS[0], max_new_tokens=8)
