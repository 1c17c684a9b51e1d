"""Models of sixty families: what their ledgers record is the plain forward, or they are refused."""

import pytest
import torch
from model_zoo import FAMILIES, VOCAB_SIZE, zoo_model
from plain_forward import plain_log_probs
from tiny_models import tiny_llama, word_tokenizer

from anchored import Anchored, Decoder, ModelPair

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


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_the_recorded_law_is_that_of_the_plain_forward_or_the_model_is_refused(family):
    risky = tiny_llama(2, vocab_size=VOCAB_SIZE).float()
    try:
        pair = ModelPair(zoo_model(family, 1), risky, word_tokenizer(VOCAB_SIZE))
    except ValueError as refusal:
        title = f"the safe model ({family}) cannot be decoded: "
        assert str(refusal).startswith(title + REFUSED[family]) and "\n" not in str(refusal)
        return
    assert pair.decodes_alone["safe"] == (family in ALONE)
    for result in Decoder(pair, Anchored(k=0.5)).generate(PROMPTS, max_new_tokens=5):
        recorded = [step.safe_log_prob for step in result.ledger.steps]
        assert result.ledger.certified and len(recorded) > 1
        assert recorded == pytest.approx(plain_log_probs(pair, result.ledger), abs=1e-4, rel=0)
