"""Models of sixty families: what their ledgers record is the plain forward, or they are refused."""

import pytest
import torch
from model_zoo import COMPOSITE, FAMILIES, zoo_model, zoo_pair
from plain_forward import assert_recorded, assert_same, plain_log_probs
from tiny_models import tiny_family, tiny_llama

from anchored import Anchored, Decoder, ModelPair, verify
from anchored.decode.streams.stream import CACHE

PROMPTS = [[0, 5, 9, 33, 7, 8, 41, 22, 17], [0, 12, 60], [0, 7]]

ALONE = (
    "openai-gpt",
    *("llama4_text", "llama4"),
    "bart",
    "mamba",
    *(() if CACHE == "cache" else ("mamba2",)),
    "falcon_mamba",
    "rwkv",
    "recurrent_gemma",
    "jamba",
    "minimax",
    "zamba",
)
"""Families that left-padded batches would get wrong; Mamba 2 not since transformers 5.24."""

REFUSED = {
    "bert": "it is not causal: without what follows its log-probabilities are off by",
    "xlnet": "it is not causal: without what follows its log-probabilities are off by",
    "nemotron_h": "alone its log-probabilities are off by 0.01",
    "zamba2": "alone its log-probabilities are off by 0.00",
    "xlstm": "alone it fails with ValueError: matC_old has wrong shape",
}
"""Why a family may be refused; those that fail alone do so in transformers 5.23."""

NO_FLOAT64 = (
    *("mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next", "granitemoe", "granitemoehybrid"),
    *("olmoe", "phimoe", "ernie4_5_moe", "glm4_moe", "deepseek_v2", "deepseek_v3", "gpt_oss"),
    *("jamba", "minimax", "xglm", "bloom", "mpt", "gemma2"),
)
"""Families whose experts' grouped product, or whose mask of several texts, is not made for
float64."""

FLOAT32_INSIDE = (
    *("gpt_neo", "qwen3_5_text", "qwen3_5", "bamba", "falcon_h1"),
    *("mamba", "mamba2", "falcon_mamba", "rwkv", "zamba", "llama4_text", "llama4"),
)
"""Families that compute scales, scores, norms or states in float32 whatever their dtype is."""


def allowed_nats(family: str) -> float:
    """Five times what rounding showed or more, far below what a wrong mask or position does: 1e-14
    in float64, 1.1e-5 of float32 inside, 2.1e-5 in float32."""
    if family in NO_FLOAT64:
        return 1e-4
    return 5e-5 if family in FLOAT32_INSIDE else 1e-10


MECHANISMS = (
    *("llama", "gpt2", "bloom", "mistral", "gemma3_text", "qwen3_moe", "llama4_text"),
    *("phi3, longrope", "mamba", "mamba2", "qwen3_next", "openai-gpt", "bert"),
)
"""A family for each: rotary, learned and ALiBi positions, windows, experts, states, refusals."""


WHOLE = [[0, *((7 * i + 5 * row + 3) % 64 for i in range(row))] for row in (15, 0, 9, 4)]
"""Texts of 1 to 16 tokens: past the windows, and past the length that YaRN stretches."""


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(f, marks=() if f in MECHANISMS else pytest.mark.slow)
        for f in (*FAMILIES, *COMPOSITE)
    ],
)
@torch.inference_mode()
def test_ledgers_record_the_plain_forward_or_the_model_is_refused(family):
    safe = zoo_model(family, 1).to(torch.float32 if family in NO_FLOAT64 else torch.float64)
    try:
        pair = zoo_pair(safe)
    except ValueError as refusal:
        title = f"the safe model ({family}) cannot be decoded: "
        assert str(refusal).startswith(title + REFUSED[family]) and "\n" not in str(refusal)
        return
    assert pair.decodes_alone["safe"] == (family in ALONE)
    decoder = Decoder(pair, Anchored(k=0.5), batch_size=3)  # the last one is alone, or joins
    settings = {"max_new_tokens": 4, "temperature": 1.0, "repetition_penalty": 1.0}
    for prompt, result in zip(WHOLE, decoder.generate(WHOLE, **settings), strict=True):
        text = torch.tensor([prompt + result.token_ids])
        plain = safe(text, use_cache=False).logits[0, len(prompt) - 1 : -1]
        expected = plain.double().log_softmax(-1).gather(1, text[0, len(prompt) :, None])
        recorded = [step.safe_log_prob for step in result.ledger.steps]
        assert result.ledger.certified and len(recorded) == 4
        assert recorded == pytest.approx(expected[:, 0].tolist(), abs=allowed_nats(family), rel=0)


def test_padding_leaves_no_trace_in_a_state_however_few_columns_are_read_at_once(monkeypatch):
    pair = zoo_pair(zoo_model("lfm2", 1))
    assert pair.row_attention["safe"] is None and not pair.decodes_alone["safe"]
    monkeypatch.setattr("anchored.decode.streams.stream.CHUNK_LOGITS", 1)
    for result in Decoder(pair, Anchored(k=0.5)).generate(PROMPTS, max_new_tokens=4):
        assert_recorded(pair, result)


@pytest.mark.parametrize("family", ["mamba2", pytest.param("rwkv", marks=pytest.mark.slow)])
def test_texts_are_the_same_together_alone_scored_and_streamed_by_turns(family):
    pair = zoo_pair(zoo_model(family, 1))
    decoder = Decoder(pair, Anchored(k=1.0), batch_size=2)  # the last of the three joins
    settings = {"max_new_tokens": 6, "temperature": 1.0, "repetition_penalty": 1.0}
    together = decoder.generate(PROMPTS, **settings)
    ends = [result.token_ids[: 6 - i] for i, result in enumerate(together)]
    scores = decoder.score(PROMPTS, ends, k=1.0, horizon=6)
    streams = [decoder.stream(prompt, **settings) for prompt in PROMPTS]
    for _ in range(6):
        for stream in streams:
            next(stream)
    for prompt, result, score, stream in zip(PROMPTS, together, scores, streams, strict=True):
        assert_same([result] * 2, [*decoder.generate([prompt], **settings), stream.generation])
        plain = plain_log_probs(pair, result.ledger)[: len(score.token_ids)]
        assert score.safe_token_log_probs == pytest.approx(plain, abs=1e-4, rel=0)
        assert verify(result.ledger, pair).is_ok
    assert sum(result.ledger.spent for result in together) > 0


def test_llama4_texts_of_unequal_lengths_beyond_its_reach_decode_alone(tokenizer):
    models = (tiny_family("llama4_text", 1).float(), tiny_llama(2).float())
    pair = ModelPair(*models, tokenizer)
    prompts = [[0, *range(5, 40)], [0, *range(7, 18)]]  # rows of up to 39 tokens share a forward
    decoder = Decoder(pair, Anchored(k=1.0))
    results = decoder.generate(prompts, max_new_tokens=8)
    for prompt, result in zip(prompts, results, strict=True):
        (alone,) = decoder.generate([prompt], max_new_tokens=8)
        assert result.token_ids == alone.token_ids
        assert_recorded(pair, result)
