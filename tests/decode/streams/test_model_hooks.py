"""Hooks that a model had before its pair, and layers of other kinds, are in what ledgers record."""

import pytest
import torch
from plain_forward import assert_recorded
from tiny_models import tiny_llama
from torch import nn
from transformers import LlamaForCausalLM

from anchored import Anchored, Decoder, ModelPair
from anchored.decode.levels.level import StreamSize, open_stream

PROMPTS = ["the keeper of the lamp", "salt"]


def halved(module, inputs):
    """A forward pre-hook."""
    return (inputs[0] / 2, *inputs[1:])


class Adapted(nn.Module):
    """A layer with its weight, and something more."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.weight, self.bias = base, base.weight, base.bias

    def forward(self, hidden):
        return self.base(hidden) - hidden.sum(-1, keepdim=True) * self.weight[:, 0]


def replace_forward(layer) -> None:
    forward = layer.forward
    layer.forward = lambda hidden: forward(hidden).flip(-1)


def favors(module, inputs, output):
    """A hook."""
    output.logits = output.logits + 5.0 * (torch.arange(output.logits.shape[-1]) == 40)
    return output


class Capped(LlamaForCausalLM):
    """A model that changes its logits after its output layer."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = torch.tanh(output.logits / 2) * 2
        return output


CHANGES = {
    "a pre-hook on the output layer": lambda m: m.lm_head.register_forward_pre_hook(halved),
    "a forward of a layer": lambda m: replace_forward(m.model.layers[0].mlp),
    "an adapted layer": lambda m: setattr(
        m.model.layers[0].self_attn, "o_proj", Adapted(m.model.layers[0].self_attn.o_proj)
    ),
    "a hook on the whole model": lambda m: m.register_forward_hook(favors),
    "another class": lambda m: setattr(m, "__class__", Capped),
}
WHOLE_BATCHES = {
    "a hook on the whole model": "it has a hook or a replaced forward, which rows would pass by",
    "another class": "in rows its log-probabilities are off by",
}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """A layer whose weight cannot be read scores a prompt in several tiles."""
    monkeypatch.setattr("anchored.decode.streams.row_stream.ROWS_PER_TILE", 3)


@torch.inference_mode()
def check_recorded(pair: ModelPair) -> None:
    """The steps of ledgers, and the scores of prompts that debts are made of."""
    for result in Decoder(pair, Anchored(k=1.0)).generate(PROMPTS, max_new_tokens=6):
        assert_recorded(pair, result)
    prompts = [pair.encode(prompt) for prompt in PROMPTS]
    read = open_stream(pair, "safe", StreamSize(2, 30, True)).read(prompts, [0, 1])
    for prompt, scores in zip(prompts, read.token_log_probs, strict=True):
        logits = pair.safe(torch.tensor([prompt]), use_cache=False).logits[0].double()
        plain = logits.log_softmax(-1)[range(len(prompt) - 1), prompt[1:]]
        torch.testing.assert_close(scores, plain, atol=1e-4, rtol=0)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_recorded_as_it_is(change, tokenizer, caplog):
    """Later changes are refused: see test_model_state."""
    safe, risky = tiny_llama(1).float(), tiny_llama(2).float()
    CHANGES[change](safe)
    pair = ModelPair(safe, risky, tokenizer)
    if change in WHOLE_BATCHES:
        assert f"decodes in whole batches: {WHOLE_BATCHES[change]}" in caplog.text
    check_recorded(pair)
