"""One model run in rows that join, grow and leave: its backbone, its output layer, its memory."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ...kernels.devices import work_device
from ...kernels.token_log_probs import hidden_token_log_probs, token_log_probs
from .kv_cache import Masks, RowAttention, RowCache, uploaded
from .lean import LeanBackbone, PackedLinear, can_be_lean, can_pack, has_room, is_hooked
from .stream import CACHE, UNSCORED, PromptLogits, last_columns

# B rows of the batch, R rows of one forward, T new columns, N rows of hidden states, D hidden size.

ROWS_PER_TILE = 64
"""Positions whose logits exist at once for all tokens."""

PREFILL_TOKENS = 8192
"""Most prompt tokens, padding included, of one forward; a longer prompt is read alone."""


class Backbone(Protocol):
    """A model without its output layer, over a cache whose rows differ in length."""

    def __call__(
        self, token_ids: Tensor, positions: Tensor, masks: Masks | None, cache: RowCache
    ) -> Tensor:
        """Hidden states (R, T, D) of token_ids, positions (R, T) int64, after `RowCache.prepare`.

        masks: of `RowAttention`; None where new columns see all before them, causally.
        """


class ModuleBackbone:
    """The modules of transformers as they are."""

    def __init__(self, model: PreTrainedModel) -> None:
        # get_decoder() of Llama 4 is the whole model.
        is_gpt2 = model.config.model_type == "gpt2"
        self._modules = model.get_submodule("transformer" if is_gpt2 else "model")

    def __call__(
        self, token_ids: Tensor, positions: Tensor, masks: Masks | None, cache: RowCache
    ) -> Tensor:
        hidden: Tensor = self._modules(
            input_ids=token_ids,
            attention_mask=masks,
            position_ids=positions,
            use_cache=True,
            **{CACHE: cache},
        ).last_hidden_state
        return hidden


class ModelRunner:
    """A model's backbone and its output layer, which predicts the first `vocab_size` tokens.

    Embeddings padded beyond those are left out. Either is read without calling its modules only
    while these are plain.

    A CPU reads packed copies of the weights (see `PackedLinear`), made once, when the first batch
    is opened or the first logits are asked for: they do not follow weights that change.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int) -> None:
        self.model, self.vocab_size = model, vocab_size
        self._work_device = work_device(model.device)
        self._lean: LeanBackbone | None = None
        self._packed: PackedLinear | None = None
        self._columns: slice | Tensor = slice(vocab_size)
        """The token of each column of the logits."""
        self._in_order: tuple[Tensor, ModelRunner] | None = None

    def backbone(self, attention: RowAttention) -> Backbone:
        """The layers that compute hidden states: lean ones, made once, or transformers'."""
        if attention.keeps_modules:
            return ModuleBackbone(self.model)
        if self._lean is None and can_be_lean(self.model, attention) and has_room(self.model):
            self._lean = LeanBackbone(self.model)
        return self._lean or ModuleBackbone(self.model)

    def in_order(self, token_ids: Tensor) -> "ModelRunner":
        """A runner of the same model, and its lean layers, whose logits are of these tokens.

        token_ids: (V,) int64, the token of each column.
        """
        if self._in_order is None or not torch.equal(self._in_order[0], token_ids):
            other = copy.copy(self)
            other.vocab_size, other._packed = len(token_ids), None
            other._columns = token_ids.to(self._work_device)
            self._in_order = token_ids, other
        return self._in_order[1]

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., vocab_size) of hidden states (..., D), in the model's dtype, on the
        `work_device`."""
        layer = self._output_layer
        if self._has_whole_weight(layer) and can_pack(layer.weight):
            if self._packed is None:
                self._packed = PackedLinear(*self._predicted(layer))
            return self._packed(hidden)
        logits: Tensor = layer(hidden)
        return logits.to(self._work_device)[..., self._columns]

    def token_log_probs(self, hidden: Tensor, token_ids: Tensor) -> Tensor:
        """(N,) float64 nats of tokens (N,) after hidden states (N, D), tile by tile."""
        layer = self._output_layer
        if self._has_whole_weight(layer):
            weight, bias = self._predicted(layer)
            return hidden_token_log_probs(hidden, weight, token_ids, bias)
        tiles = zip(*(torch.split(t, ROWS_PER_TILE) for t in (hidden, token_ids)), strict=True)
        logits = ((self.logits(rows), tokens) for rows, tokens in tiles)
        return torch.cat([token_log_probs(rows, tokens.to(rows.device)) for rows, tokens in logits])

    @property
    def _output_layer(self) -> Any:
        """The layer as it is now."""
        return self.model.get_output_embeddings()  # type: ignore[no-untyped-call]

    def _predicted(self, layer: nn.Linear) -> tuple[Tensor, Tensor | None]:
        """Weight (vocab_size, D) and bias (vocab_size,) of the tokens that are predicted."""
        bias = None if layer.bias is None else layer.bias[self._columns]
        return layer.weight[self._columns], bias

    def _has_whole_weight(self, layer: nn.Module) -> bool:
        """False for a layer that is quantized, that its owner has split, or that has hooks."""
        if type(layer) is not nn.Linear or type(layer.weight) is not nn.Parameter:
            return False
        return len(layer.weight) >= self.vocab_size and not is_hooked(layer)


class RowStream:
    """A row cache, the backbone that fills it and the output layer after it.

    A row's logits depend on its tokens alone, whatever the other rows hold; the output layer
    runs for the last position of a prompt only, and in tiles for the log-probabilities before it.
    """

    def __init__(
        self,
        runner: ModelRunner,
        attention: RowAttention,
        *,
        num_rows: int,
        max_length: int,
        scores_prompts: bool = True,
    ) -> None:
        self.model, self.attention = runner.model, attention
        self.vocab_size, self.scores_prompts = runner.vocab_size, scores_prompts
        self.backbone = runner.backbone(attention)
        self._runner = runner
        self.cache = RowCache(self.model.config.num_hidden_layers, num_rows, max_length)

    @torch.inference_mode()
    def read(self, prompts: list[list[int]], rows: list[int]) -> PromptLogits:
        """Read whole prompts into free rows."""
        logits, log_probs = [], []
        for group in prompt_groups([len(prompt) for prompt in prompts]):
            read = self._read_together(prompts[group], rows[group])
            logits.append(read.logits)
            log_probs += read.token_log_probs
        return PromptLogits(torch.cat(logits), log_probs, num_forwards=1)

    @torch.inference_mode()
    def feed(self, rows: list[int], tokens: list[list[int]], num_last: int = 1) -> Tensor:
        """See Stream."""
        token_ids, counts = right_padded(tokens)
        hidden = self._hidden(rows, token_ids, counts)
        if min(counts) == num_last == hidden.shape[1]:
            return self._runner.logits(hidden)
        last = uploaded(last_columns(counts, num_last), hidden.device)
        row = torch.arange(len(rows), device=hidden.device)[:, None]
        return self._runner.logits(hidden[row, last])

    @torch.inference_mode()
    def free(self, row: int) -> None:
        """Empty a row for the next request."""
        self.cache.free(row)

    def _hidden(self, rows: list[int], token_ids: Tensor, counts: list[int]) -> Tensor:
        """(R, T, D) after new columns (R, T), of which each row's first `counts` are tokens."""
        placement = self.cache.prepare(rows, token_ids.shape[1], self.model.device)
        # 1. Padding has no position: one past the context would be out of range.
        positions = placement.columns
        if min(counts) < token_ids.shape[1]:
            lengths = zip(rows, counts, strict=True)
            ends = torch.tensor([[self.cache.lengths[row] + n - 1] for row, n in lengths])
            positions = torch.minimum(positions, uploaded(ends, positions.device))
        # 2. Without a mask of ours one row decodes by the fused kernels, which repeat no keys.
        masks = None
        if not placement.is_level:
            masks = self.attention.masks(placement.columns, placement.num_columns, self.model.dtype)
        token_ids = uploaded(token_ids, self.model.device)
        hidden = self.backbone(token_ids, positions, masks, self.cache)
        self.cache.advance(rows, counts)
        return hidden

    def _read_together(self, prompts: list[list[int]], rows: list[int]) -> PromptLogits:
        assert not any(self.cache.lengths[row] for row in rows), f"rows {rows} were not freed"
        token_ids, lengths = right_padded(prompts)
        # Nothing lies before these tokens and padding only after them: no mask is needed, which
        # leaves the fused attention kernels usable.
        hidden = self._hidden(rows, token_ids, lengths)
        ends = uploaded(torch.tensor(lengths) - 1, hidden.device)
        last = hidden[torch.arange(len(rows), device=hidden.device), ends]
        log_probs = [UNSCORED] * len(rows)
        if self.scores_prompts:
            is_followed = torch.arange(1, token_ids.shape[1]) < torch.tensor(lengths)[:, None]
            chosen = is_followed.to(hidden.device)
            targets = token_ids[:, 1:][is_followed].to(hidden.device)
            values = self._runner.token_log_probs(hidden[:, :-1][chosen], targets)
            log_probs = list(torch.split(values.cpu(), [length - 1 for length in lengths]))
        return PromptLogits(self._runner.logits(last), log_probs, 1)


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

    It is a token of the row, as one with broken embeddings would spread NaN through the mask.
    """
    lengths = [len(prompt) for prompt in prompts]
    longest = max(lengths)
    padded = [prompt + prompt[-1:] * (longest - len(prompt)) for prompt in prompts]
    return torch.tensor(padded), lengths
