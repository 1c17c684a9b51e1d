"""Rows that join, grow, roll back and leave give the logits of the plain forward."""

import random

import pytest
import torch
from tiny_models import FAMILIES, tiny_family
from torch import Tensor

from anchored.decode.models.capabilities import row_attention
from anchored.decode.models.row_stream import ModelRunner, RowStream

VOCAB_SIZE = 320
NUM_ROWS = 3
MAX_LENGTH = 24


def stream_of(model) -> RowStream:
    return RowStream(
        ModelRunner(model, VOCAB_SIZE),
        row_attention(model),
        num_rows=NUM_ROWS,
        max_length=MAX_LENGTH,
    )


class Texts:
    """The tokens that each row of a stream should hold, and what the plain forward says."""

    def __init__(self, model, seed: int) -> None:
        self.model, self.random = model, random.Random(seed)
        self.stream = stream_of(model)
        self.texts: list[list[int]] = [[] for _ in range(NUM_ROWS)]

    def is_close(self, actual: Tensor, expected: Tensor) -> bool:
        # Whatever the dtype, Llama 4 rotates and eager attention takes its softmax in float32.
        config = self.model.config
        is_float32 = config.model_type == "llama4_text" or config._attn_implementation == "eager"
        return torch.allclose(actual, expected, atol=1e-4 if is_float32 else 1e-9, rtol=0)

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

    def feed(self) -> None:
        width = self.random.randint(1, 3)
        new = [self.tokens(self.random.randint(0, width) if text else 0) for text in self.texts]
        columns = torch.tensor([tokens + [5] * (width - len(tokens)) for tokens in new])
        mask = torch.tensor([[1] * len(t) + [0] * (width - len(t)) for t in new])
        logits = self.stream.feed(columns, mask)
        for row, tokens in enumerate(new):
            self.texts[row] = self.texts[row] + tokens
            if tokens:
                assert self.is_close(
                    logits[row, : len(tokens)], self.plain(self.texts[row])[-len(tokens) :]
                )

    def roll_back(self, row: int) -> None:
        length = self.random.randint(1, len(self.texts[row]))
        self.stream.roll_back(row, length)
        self.texts[row] = self.texts[row][:length]

    def leave(self, row: int) -> None:
        self.stream.free(row)
        self.texts[row] = []


@pytest.mark.sampled(5)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_any_history_gives_the_plain_logits(family, attention):
    texts = Texts(tiny_family(family, 1, attn_implementation=attention), seed=7)
    texts.join([1])
    texts.feed()
    texts.join([2, 0])
    for _ in range(12):
        texts.feed()
        row = texts.random.randrange(NUM_ROWS)
        if len(texts.texts[row]) > MAX_LENGTH - 5:
            texts.leave(row)
            texts.join([row])
        elif texts.random.random() < 0.5:
            texts.roll_back(row)
    assert max(len(text) for text in texts.texts) > 10


def test_prompts_too_long_for_one_forward_are_read_in_groups(monkeypatch):
    monkeypatch.setattr("anchored.decode.models.row_stream.PREFILL_TOKENS", 8)
    texts = Texts(tiny_family("llama", 1), seed=3)
    texts.join([2, 0, 1])
    texts.feed()


def test_llama4_is_covered_up_to_the_length_at_which_it_scales_queries():
    attention = row_attention(tiny_family("llama4_text", 1))
    assert attention.covers(39) and not attention.covers(40)
