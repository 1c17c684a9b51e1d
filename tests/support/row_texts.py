"""Rows of a stream against the plain forward, whatever their history."""

import random

import torch
from torch import Tensor

from anchored.decode.streams.capabilities import row_attention
from anchored.decode.streams.row_stream import ModelRunner, RowStream

VOCAB_SIZE = 320
NUM_ROWS = 3
MAX_LENGTH = 24


class RowTexts:
    """The tokens that each row of a stream should hold, and what the plain forward says."""

    def __init__(self, model, seed: int) -> None:
        self.model, self.random = model, random.Random(seed)
        runner, size = ModelRunner(model, VOCAB_SIZE), {"num_rows": NUM_ROWS}
        self.stream = RowStream(runner, row_attention(model), max_length=MAX_LENGTH, **size)
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
