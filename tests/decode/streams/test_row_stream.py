"""Rows that join, grow, roll back and leave give the logits of the plain forward."""

import random

import pytest
import torch
from tiny_models import FAMILIES, tiny_family, tiny_llama
from torch import Tensor

from anchored.decode.streams import lean
from anchored.decode.streams.capabilities import row_attention
from anchored.decode.streams.lean import LeanBackbone
from anchored.decode.streams.row_stream import ModelRunner, RowStream

VOCAB_SIZE = 320
NUM_ROWS = 3
MAX_LENGTH = 24


class RowTexts:
    """The tokens that each row of a stream should hold, and what the plain forward says."""

    def __init__(self, model, seed: int) -> None:
        self.model, self.random = model, random.Random(seed)
        self.runner, size = ModelRunner(model, VOCAB_SIZE), {"num_rows": NUM_ROWS}
        self.stream = RowStream(self.runner, row_attention(model), max_length=MAX_LENGTH, **size)
        self.texts: list[list[int]] = [[] for _ in range(NUM_ROWS)]

    def is_close(self, actual: Tensor, expected: Tensor) -> bool:
        # Whatever the dtype, Llama 4 rotates and eager attention takes its softmax in float32.
        config, is_float32 = self.model.config, self.model.dtype == torch.float32
        is_float32 |= config.model_type == "llama4_text" or config._attn_implementation == "eager"
        close = 1e-4 if is_float32 else 1e-9
        return torch.allclose(actual.double(), expected.double(), atol=close, rtol=0)

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(VOCAB_SIZE) for _ in range(count)]

    @torch.inference_mode()
    def plain(self, text: list[int]) -> Tensor:
        return self.model(torch.tensor([text]), use_cache=False).logits[0]

    def join(self, rows: list[int]) -> None:
        prompts = [self.tokens(self.random.randint(1, 9)) for _ in rows]
        read = self.stream.read(prompts, rows)
        for place, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
            logits = self.plain(prompt)
            assert self.is_close(read.logits[place], logits[-1])
            chosen = logits.log_softmax(-1)[:-1].gather(-1, torch.tensor(prompt[1:])[:, None])
            assert self.is_close(read.token_log_probs[place], chosen[:, 0])
            self.texts[row] = prompt

    def feed(self, counts: list[int] | None = None) -> None:
        """Tokens of rows that are there, so many of each, up to three at random unless named."""
        counts = counts or [self.random.randint(0, 3) for _ in range(NUM_ROWS)]
        new = {row: self.tokens(count) for row, count in enumerate(counts)}
        new = {row: tokens for row, tokens in new.items() if tokens and self.texts[row]}
        if not new:
            return
        logits = self.stream.feed([*new], [*new.values()], 3)
        for (row, tokens), values in zip(new.items(), logits, strict=True):
            self.texts[row] = self.texts[row] + tokens
            expected = self.plain(self.texts[row])[-len(tokens) :]
            assert self.is_close(values[3 - len(tokens) :], expected)

    def roll_back(self, row: int) -> None:
        length = self.random.randint(1, len(self.texts[row]))
        self.stream.cache.roll_back(row, length)
        self.texts[row] = self.texts[row][:length]

    def leave(self, row: int) -> None:
        self.stream.free(row)
        self.texts[row] = []

    def check_history(self) -> None:
        """Rows join, grow, go back and leave."""
        self.join([1])
        self.feed([0, 3, 0])  # one row alone needs no masks of ours
        self.feed()
        self.join([2, 0])
        longest = 0
        for _ in range(12):
            self.feed()
            longest = max(longest, *map(len, self.texts))
            for row, text in enumerate(self.texts):
                if len(text) > MAX_LENGTH - 3:  # no room for another feed
                    self.leave(row)
                    self.join([row])
            if self.random.random() < 0.5:
                self.roll_back(self.random.randrange(NUM_ROWS))
        assert longest > 10


@pytest.mark.sampled(5)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_any_history_gives_the_plain_logits(family, attention):
    RowTexts(tiny_family(family, 1, attn_implementation=attention), seed=7).check_history()


VARIANTS = {
    "biases": {"attention_bias": True, "mlp_bias": True},
    "a large epsilon": {"rms_norm_eps": 0.05},
    "a key head for each query head": {"num_key_value_heads": 4},
    "yarn positions": {
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0}
    },
}


@pytest.mark.parametrize("name", [*lean.FAMILIES, *VARIANTS])
def test_any_history_of_lean_layers_gives_the_plain_logits(name):
    model = tiny_family(name, 1) if name in lean.FAMILIES else tiny_llama(1, **VARIANTS[name])
    model = model.float().eval()
    # New norms are ones and new biases zeros, which would hide whether they are used, and were they
    # equal, which of them is.
    with torch.no_grad():
        for place, (parameter, weight) in enumerate(model.named_parameters()):
            if "norm" in parameter or "bias" in parameter:
                weight += torch.linspace(-0.5, 0.5, len(weight)).roll(3 * place)
    texts = RowTexts(model, seed=7)
    assert isinstance(texts.runner.backbone(row_attention(model)), LeanBackbone)
    texts.check_history()


def test_prompts_too_long_for_one_forward_are_read_in_groups(monkeypatch):
    monkeypatch.setattr("anchored.decode.streams.row_stream.PREFILL_TOKENS", 8)
    texts = RowTexts(tiny_family("llama", 1), seed=3)
    texts.join([2, 0, 1])
    texts.feed()


def test_llama4_is_covered_up_to_the_length_at_which_it_scales_queries():
    attention = row_attention(tiny_family("llama4_text", 1))
    assert attention.covers(39) and not attention.covers(40)
