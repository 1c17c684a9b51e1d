"""The interface of one model to the engine: read prompts, then feed new columns."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from ...kernels.devices import work_device
from ...kernels.token_log_probs import token_log_probs
from ..settings import SamplingConfig

# B rows of a batch, R rows of one call, T new columns, L tokens of a prompt.

CHUNK_LOGITS = 1 << 24
"""Most logits held at once while known tokens are read: 64 MiB in float32."""


UNSCORED = torch.empty(0, dtype=torch.float64)
"""Log-probabilities of a prompt's symbols where they are not computed."""


@dataclass(frozen=True, slots=True)
class PromptLogits:
    """The results of one model for the prompts that it has read."""

    logits: Tensor
    """(R, vocab_size) after the last token of each prompt, in the model's dtype, on the
    `work_device` of the model's."""
    token_log_probs: list[Tensor]
    """Per prompt (length - 1,) float64 on the CPU: log-probabilities of tokens 1.., in nats; NaN
    where the logits are no distribution; (0,) of a stream that scores no prompts."""
    num_forwards: int
    """Forwards that each prompt took part in."""


class Stream(Protocol):
    """One model's memory of a batch of B rows."""

    vocab_size: int

    def read(self, prompts: list[list[int]], rows: list[int]) -> PromptLogits:
        """Read whole prompts, one into each of some empty rows."""
        ...

    def feed(self, rows: list[int], tokens: list[list[int]], num_last: int = 1) -> Tensor:
        """Logits (R, num_last, vocab_size) after the last new tokens of some rows, in order, in the
        model's dtype, on the `work_device` of the model's.

        tokens: one list a row, none empty; if shorter than `num_last`, its first logits mean
        nothing.
        """
        ...

    def free(self, row: int) -> None:
        """Forget a row whose request has ended."""
        ...


def chunks(vocab_size: int, batch_size: int, num_columns: int) -> Iterator[slice]:
    """Slices of the columns, each of at most CHUNK_LOGITS logits, or of two columns.

    A column by itself would be a step of a recurrent model to transformers, which heeds no mask
    there: only the last one, which holds no padding, may be alone.
    """
    width = max(2, CHUNK_LOGITS // (batch_size * vocab_size))
    for start in range(0, num_columns, width):
        yield slice(start, min(start + width, num_columns))


def last_columns(counts: list[int], num_last: int) -> Tensor:
    """(R, num_last) int64 indices of the last of so many columns of each row; 0 for those before
    the first."""
    return (torch.tensor(counts)[:, None] - num_last + torch.arange(num_last)).clamp(min=0)


@runtime_checkable
class WarpingStream(Protocol):
    """A stream whose logits are warped already."""

    def set_sampling(self, row: int, sampling: SamplingConfig) -> None:
        """Warp the next text of a free row so."""


class BatchStream:
    """The model's cache, padding and mask; all rows are read at once and none can join later.

    Positions count real tokens only, so a row's logits do not depend on its padding (absolute
    position embeddings included).
    """

    def __init__(
        self, model: PreTrainedModel, num_rows: int, vocab_size: int, *, scores_prompts: bool = True
    ) -> None:
        self.model, self.vocab_size = model, vocab_size
        self.scores_prompts, self._work_device = scores_prompts, work_device(model.device)
        self._cache = DynamicCache(config=model.config)
        self._mask = torch.zeros(num_rows, 0, dtype=torch.long, device=model.device)

    def read(self, prompts: list[list[int]], rows: list[int]) -> PromptLogits:
        """Read whole prompts into all rows; no (L, V) logits are ever held."""
        assert rows == list(range(len(self._mask))) and not self._mask.shape[1], rows
        # Padding is token 0 with mask 0, before each prompt.
        width = max(map(len, prompts))
        token_ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        gathered, num_forwards = [], 0
        for columns in chunks(self.vocab_size, *token_ids.shape):
            logits = self._forward(token_ids[:, columns], mask[:, columns])
            num_forwards += 1
            if self.scores_prompts:
                targets = token_ids[:, columns.start + 1 : columns.stop + 1].to(logits.device)
                gathered.append(token_log_probs(logits[:, : targets.shape[1]], targets).cpu())
        if not self.scores_prompts:
            return PromptLogits(logits[:, -1], [UNSCORED] * len(prompts), num_forwards)
        log_probs = torch.cat(gathered, dim=1)
        padding = [log_probs.shape[1] + 1 - len(prompt) for prompt in prompts]
        by_prompt = [row[start:] for row, start in zip(log_probs, padding, strict=True)]
        return PromptLogits(logits[:, -1], by_prompt, num_forwards)

    def feed(self, rows: list[int], tokens: list[list[int]], num_last: int = 1) -> Tensor:
        """See Stream; columns are shared, so rows with fewer tokens are padded after them."""
        counts = [len(new) for new in tokens]
        token_ids = torch.zeros(len(self._mask), max(counts), dtype=torch.long)
        mask = torch.zeros_like(token_ids)
        for row, new in zip(rows, tokens, strict=True):
            token_ids[row, : len(new)], mask[row, : len(new)] = torch.tensor(new), 1
        first, kept = max(0, min(counts) - num_last), []
        for columns in chunks(self.vocab_size, *token_ids.shape):
            logits = self._forward(token_ids[:, columns], mask[:, columns])
            if columns.stop > first:
                kept.append(logits[rows, max(0, first - columns.start) :])
        last = last_columns(counts, num_last).sub(first).clamp(min=0).to(self._work_device)
        return torch.cat(kept, dim=1)[torch.arange(len(rows))[:, None], last]

    @torch.inference_mode()
    def _forward(self, token_ids: Tensor, mask: Tensor) -> Tensor:
        """Logits (B, T, vocab_size) after each new column; zeros of the mask may be anywhere."""
        token_ids, mask = token_ids.to(self.model.device), mask.to(self.model.device)
        self._mask = torch.cat([self._mask, mask], dim=1)
        positions = (self._mask.cumsum(1) - 1).clamp(min=0)[:, -token_ids.shape[1] :]
        output = self.model(
            input_ids=token_ids,
            attention_mask=self._mask,
            position_ids=positions,
            use_cache=True,
            **{CACHE: self._cache},
        )
        logits: Tensor = output.logits[..., : self.vocab_size]
        return logits.to(self._work_device)

    def free(self, row: int) -> None:
        """Nothing: the row stays in the batch until the batch ends."""


CACHES = ("cache", "past_key_values", "cache_params", "state")
"""Names in transformers' models of the memory that they return: all since 5.24 but RWKV; before,
those with attention, Mamba and RWKV."""
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
"""The argument of a model with attention for its memory, by the installed transformers."""


class LoneStream:
    """Texts that are read and continued one by one, as `generate` of transformers would do it.

    A prompt takes one forward, each later token another, without padding: a recurrent state takes
    many tokens at once only where a text begins. A model that returns no memory reads the whole
    text every time, since what it may keep within its modules would be shared with other texts.
    """

    def __init__(
        self, model: PreTrainedModel, num_rows: int, vocab_size: int, *, scores_prompts: bool = True
    ) -> None:
        self.model, self.vocab_size = model, vocab_size
        self.scores_prompts, self._work_device = scores_prompts, work_device(model.device)
        self._texts: list[list[int]] = [[] for _ in range(num_rows)]
        self._caches: list[dict[str, Any]] = [{} for _ in range(num_rows)]

    @property
    def rereads(self) -> bool:
        """True if every new token makes the model read the whole text again."""
        return not all(self._caches)

    @torch.inference_mode()
    def read(self, prompts: list[list[int]], rows: list[int]) -> PromptLogits:
        """Read each prompt into an empty row; (L, vocab_size) logits of one exist at a time."""
        last, log_probs = [], []
        for row, prompt in zip(rows, prompts, strict=True):
            logits = self._forward(row, prompt)
            last.append(logits[-1:].clone())
            targets = torch.tensor(prompt[1:], device=logits.device)
            parts = [
                token_log_probs(logits[columns], targets[columns]).cpu()
                for columns in chunks(self.vocab_size, 1, len(targets))
                if self.scores_prompts
            ]
            log_probs.append(torch.cat([UNSCORED, *parts]))
        return PromptLogits(torch.cat(last), log_probs, 1)

    @torch.inference_mode()
    def feed(self, rows: list[int], tokens: list[list[int]], num_last: int = 1) -> Tensor:
        """See Stream; logits that mean nothing are zeros."""
        fed = []
        for row, new in zip(rows, tokens, strict=True):
            logits = torch.cat([self._forward(row, [token]) for token in new][-num_last:])
            fed.append(functional.pad(logits, (0, 0, num_last - len(logits), 0)))
        return torch.stack(fed)

    def free(self, row: int) -> None:
        """Forget a text."""
        self._texts[row], self._caches[row] = [], {}

    def _forward(self, row: int, tokens: list[int]) -> Tensor:
        """(new tokens, vocab_size) after a whole prompt, or after one token more."""
        self._texts[row] += tokens
        text, cache = self._texts[row], self._caches[row]
        unread = tokens if cache else text
        positions = torch.arange(len(text) - len(unread), len(text))
        output = self.model(
            input_ids=torch.tensor([unread], device=self.model.device),
            position_ids=positions[None].to(self.model.device),
            use_cache=True,
            **cache,
        )
        self._caches[row] = {name: memory for name, memory in output.items() if name in CACHES}
        logits: Tensor = output.logits[0, -len(tokens) :, : self.vocab_size]
        return logits.to(self._work_device)
