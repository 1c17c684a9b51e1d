"""One model's memory of rows that join, grow and leave on their own."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .attention import Masks, RowAttention
from .backbone import backbone_of, read_prompts
from .kv_cache import Placement, RowCache, uploaded
from .linear import OutputLayer
from .stream import UNSCORED, PromptLogits

# B rows of the batch, R rows of one forward, T new columns, D hidden size.

PREFILL_TOKENS = 8192
"""Most prompt tokens, padding included, of one forward; a longer prompt is read alone."""


class RowStream:
    """A row cache, the backbone that fills it and the output layer behind it.

    A row's logits depend on its own tokens alone, whatever the other rows hold; the output layer
    runs for the last position of a prompt only, and in tiles for the log-probabilities before it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        attention: RowAttention,
        *,
        num_rows: int,
        max_length: int,
        output: OutputLayer,
        scores_prompts: bool = True,
    ) -> None:
        """scores_prompts: whether reading gives log-probabilities of the prompts' own tokens."""
        self.model, self.attention = model, attention
        self.vocab_size = output.vocab_size
        self.max_length, self.scores_prompts = max_length, scores_prompts
        self.backbone = backbone_of(model, attention)
        """Another one of the same model may take its place before anything is read."""
        self._output = output
        self._cache = RowCache(model.config.num_hidden_layers, num_rows, max_length)

    @torch.inference_mode()
    def read(self, prompts: list[list[int]], rows: list[int]) -> PromptLogits:
        """Read whole prompts into the given free rows."""
        logits, log_probs = [], []
        for group in prompt_groups([len(prompt) for prompt in prompts]):
            read = self._read_together(prompts[group], rows[group])
            logits.append(read.logits)
            log_probs += read.token_log_probs
        return PromptLogits(torch.cat(logits), log_probs, num_forwards=1)

    @torch.inference_mode()
    def feed(self, token_ids: Tensor, mask: Tensor) -> Tensor:
        """Logits (B, T, vocab_size) after each new column; see Stream."""
        rows = list(range(len(token_ids)))
        return self._output.logits(self._hidden(rows, token_ids, mask.sum(1).tolist()))

    @torch.inference_mode()
    def copy(self, row: int, others: Sequence[int]) -> None:
        """Let other rows, which are free, hold what this one has read."""
        states = self._cache.states(row)
        for other in others:
            self._cache.restore(other, states)

    def feed_rows(self, rows: list[int], tokens: list[list[int]]) -> Tensor:
        """Logits (R, vocab_size) after the last of each row's new tokens; see Stream."""
        return self.feed_ends(rows, tokens, 1)[:, 0]

    @torch.inference_mode()
    def feed_ends(self, rows: list[int], tokens: list[list[int]], num_last: int) -> Tensor:
        """Logits (R, num_last, vocab_size) after the last new tokens of some rows, in order.

        tokens: one list a row, none empty; where one is shorter than `num_last`, the first of its
        logits mean nothing.
        """
        token_ids, counts = right_padded(tokens)
        hidden = self._hidden(rows, token_ids, counts)
        if min(counts) == num_last == hidden.shape[1]:
            return self._output.logits(hidden)
        ends = torch.tensor(counts)[:, None]
        last = (ends - num_last + torch.arange(num_last)).clamp(min=0)
        row = torch.arange(len(rows), device=hidden.device)[:, None]
        return self._output.logits(hidden[row, uploaded(last, hidden.device)])

    @torch.inference_mode()
    def feed_at(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Logits (B, T, vocab_size) after new tokens, at columns that only the device knows.

        token_ids, positions: (B, T) int64 on the model's device, positions ascending by one in each
        row; those behind the model's context are of no use, but allowed. Nothing waits for the
        device, so a CUDA graph may capture it. Needs `reserve` before a first prompt, and full
        attention in all layers; the lengths on the host stay as they are.
        """
        return self._output.logits(self.backbone.at(token_ids, positions, self._cache))

    def reserve(self) -> None:
        """Take all memory with the first prompt, so that it never moves afterwards."""
        self._cache.reserve()

    @torch.inference_mode()
    def free(self, row: int) -> None:
        """Empty a row for the next request."""
        self._cache.free(row)

    def roll_back(self, row: int, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens of a row."""
        self._cache.roll_back(row, num_tokens)

    def _hidden(self, rows: list[int], token_ids: Tensor, counts: list[int]) -> Tensor:
        """(R, T, D) after new columns (R, T), of which each row's first `counts` are tokens."""
        place = self._cache.place(rows, token_ids.shape[1], self.model.device)
        hidden = self.backbone(
            uploaded(token_ids, self.model.device),
            self._positions(place, rows, counts),
            self._masks(place),
            self._cache,
        )
        self._cache.advance(rows, counts)
        return hidden

    def _positions(self, place: Placement, rows: list[int], counts: list[int]) -> Tensor:
        if min(counts) == place.columns.shape[1]:
            return place.columns
        # Padding has no position of its own: one past the context would be out of range.
        past = zip(rows, counts, strict=True)
        ends = torch.tensor([[max(0, self._cache.lengths[row] + n - 1)] for row, n in past])
        return torch.minimum(place.columns, uploaded(ends, place.columns.device))

    def erase_rest(self, row: int) -> None:
        """Zero what lies behind a row's end."""
        self._cache.erase_rest(row)

    def _masks(self, place: Placement) -> Masks | None:
        # Without a mask of ours one row decodes by the fused kernels, which repeat no keys.
        if place.is_level:
            return None
        return self.attention.masks(place.columns, place.num_columns, self.model.dtype)

    def _read_together(self, prompts: list[list[int]], rows: list[int]) -> PromptLogits:
        token_ids, lengths = right_padded(prompts)
        token_ids = uploaded(token_ids, self.model.device)
        hidden = read_prompts(self.backbone, self._cache, rows, token_ids, lengths)
        ends = uploaded(torch.tensor(lengths) - 1, hidden.device)
        last = hidden[torch.arange(len(rows), device=hidden.device), ends]
        log_probs = [UNSCORED] * len(rows)
        if self.scores_prompts:
            log_probs = self._token_log_probs(hidden, token_ids, lengths)
        return PromptLogits(self._output.logits(last), log_probs, 1)

    def _token_log_probs(
        self, hidden: Tensor, token_ids: Tensor, lengths: list[int]
    ) -> list[Tensor]:
        is_followed = torch.arange(1, token_ids.shape[1]) < torch.tensor(lengths)[:, None]
        chosen = is_followed.to(hidden.device)
        log_probs = self._output.token_log_probs(
            hidden[:, :-1][chosen], token_ids[:, 1:][chosen].to(hidden.device)
        )
        return list(torch.split(log_probs.cpu(), [length - 1 for length in lengths]))


def prompt_groups(lengths: Sequence[int]) -> Iterator[slice]:
    """Slices of prompts that are read in one forward."""
    start, longest = 0, 0
    for index, length in enumerate(lengths):
        longest = max(longest, length)
        if index > start and longest * (index + 1 - start) > PREFILL_TOKENS:
            yield slice(start, index)
            start, longest = index, length
    yield slice(start, len(lengths))


def right_padded(prompts: list[list[int]]) -> tuple[Tensor, list[int]]:
    """(token_ids (R, longest) int64, lengths); padding repeats the prompt's last token.

    A token of the row's own, as one with broken embeddings would spread NaN through the mask.
    """
    lengths = [len(prompt) for prompt in prompts]
    longest = max(lengths)
    padded = [prompt + prompt[-1:] * (longest - len(prompt)) for prompt in prompts]
    return torch.tensor(padded), lengths
