"""Pairs that cannot speculate are refused in one line."""

import pytest
import torch
from tiny_models import tiny_family, tiny_llama
from transformers import BitsAndBytesConfig

from anchored import Anchored, Decoder, ModelPair
from anchored.decode.engine.speculative_batch import speculation_refusal
from anchored.decode.levels.level import TokenLevel
from anchored.decode.streams.capabilities import largest_leak, row_attention


def compressed(strategy: str) -> dict:
    """fp8 with dynamic scales of activations, by tensor or by token."""
    activations = {"dynamic": True, "strategy": strategy}
    groups = {"group_0": {"input_activations": activations}}
    return {"quant_method": "compressed-tensors", "config_groups": groups}


@pytest.fixture
def llama_pair(tokenizer) -> ModelPair:
    return ModelPair(tiny_llama(1), tiny_llama(2, layers=3), tokenizer)


def check_refused(pair, reason: str) -> None:
    with pytest.raises(ValueError, match="speculate=2 cannot run here: the ") as error:
        Decoder(pair, Anchored(k=1.0), speculate=2)
    assert reason in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("quantization_config", compressed("tensor"), "share one dynamic scale"),
        ("quantization_config", BitsAndBytesConfig(load_in_8bit=True), "outliers are sought over"),
        ("expert_capacity", 64, "experts drop tokens beyond their capacity (expert_capacity)"),
        ("quantization_config", compressed("token"), ""),
    ],
)
def test_what_tokens_of_a_forward_share_is_refused_and_nothing_else(
    llama_pair, name, value, reason
):
    setattr(llama_pair.risky.config, name, value)
    if reason:
        check_refused(llama_pair, reason)
    else:
        level = TokenLevel(llama_pair)
        assert speculation_refusal(level, Anchored(k=1.0).open(level)) == ""


class SharedScale(torch.nn.Linear):
    """Rounds its input by one scale over the whole tensor, as dynamic fp8 by tensor does."""

    def forward(self, hidden):
        scale = hidden.abs().max() / 127
        return super().forward((hidden / scale).round() * scale)


def test_a_model_whose_predictions_depend_on_later_drafts_is_seen_by_running_it(llama_pair):
    attention = row_attention(llama_pair.risky)
    assert largest_leak(llama_pair.runners["risky"], attention) == 0.0
    for layer in llama_pair.risky.model.layers:
        layer.mlp.down_proj.__class__ = SharedScale
    check_refused(llama_pair, "logits depend on later drafts")


def test_a_draft_beyond_the_models_reach_is_refused(tokenizer):
    models = [tiny_family("llama4_text", seed) for seed in (1, 2)]  # rows of up to 39 tokens
    pair = ModelPair(*models, tokenizer)
    settings = {"prompts": [[0, 5, 6, 7]], "max_new_tokens": 33}
    with pytest.raises(ValueError, match="rows of 37 tokens and drafts of 4 exceed"):
        Decoder(pair, Anchored(k=1.0), speculate=4).generate(**settings)
