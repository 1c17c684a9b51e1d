"""One model's memory of a left-padded batch: any causal model, rows that start together."""

from collections import deque

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from ..kernels.token_log_probs import token_log_probs
from .stream import UNSCORED, PromptLogits, chunks, feed_in_chunks


class BatchStream:
    """The model's own cache, padding and mask; all rows are read at once and none can join later.

    Positions count real tokens only, so a row's logits do not depend on its padding (absolute
    position embeddings included).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        num_rows: int,
        vocab_size: int,
        *,
        scores_prompts: bool = True,
    ) -> None:
        """scores_prompts: whether reading gives log-probabilities of the prompts' own tokens."""
        self.model, self.vocab_size = model, vocab_size
        self.scores_prompts = scores_prompts
        self._cache = DynamicCache(config=model.config)
        self._mask = torch.zeros(num_rows, 0, dtype=torch.long, device=model.device)

    def read(self, prompts: list[list[int]], rows: list[int]) -> PromptLogits:
        """Read whole prompts into all rows; no (L, V) logits are ever held."""
        if rows != list(range(len(self._mask))) or self._mask.shape[1]:
            raise ValueError(f"a left-padded batch is read once and whole, got rows {rows}")
        token_ids, mask = left_padded(prompts)
        gathered, num_forwards = [], 0
        for columns in chunks(self.vocab_size, *token_ids.shape):
            logits = self.feed(token_ids[:, columns], mask[:, columns])
            num_forwards += 1
            if self.scores_prompts:
                targets = token_ids[:, columns.start + 1 : columns.stop + 1].to(logits.device)
                gathered.append(token_log_probs(logits[:, : targets.shape[1]], targets).cpu())
        if not self.scores_prompts:
            return PromptLogits(logits[:, -1], [UNSCORED] * len(prompts), num_forwards)
        log_probs = torch.cat(gathered, dim=1)
        first = [log_probs.shape[1] + 1 - len(prompt) for prompt in prompts]
        own = [row[start:] for row, start in zip(log_probs, first, strict=True)]
        return PromptLogits(logits[:, -1], own, num_forwards)

    @torch.inference_mode()
    def feed(self, token_ids: Tensor, mask: Tensor) -> Tensor:
        """Logits (B, T, vocab_size) after each new column; zeros of the mask may be anywhere."""
        token_ids, mask = token_ids.to(self.model.device), mask.to(self.model.device)
        self._mask = torch.cat([self._mask, mask], dim=1)
        positions = (self._mask.cumsum(1) - 1).clamp(min=0)[:, -token_ids.shape[1] :]
        output = self.model(
            input_ids=token_ids,
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        logits: Tensor = output.logits[..., : self.vocab_size]
        return logits

    def feed_rows(self, rows: list[int], tokens: list[list[int]]) -> Tensor:
        """See Stream; columns are shared, so all rows that go on are fed as many tokens."""
        new = torch.tensor(tokens)
        token_ids = new.new_zeros(len(self._mask), new.shape[1])
        mask = torch.zeros_like(token_ids)
        token_ids[rows], mask[rows] = new, 1
        (logits,) = deque(feed_in_chunks(self, token_ids, mask), maxlen=1)
        return logits[rows]

    def free(self, row: int) -> None:
        """Nothing: the row stays in the batch until the batch ends."""


def left_padded(prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """(token_ids, mask), both (batch, longest) int64; padding is token 0 with mask 0."""
    width = max(len(prompt) for prompt in prompts)
    token_ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros_like(token_ids)
    for row, prompt in enumerate(prompts):
        token_ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return token_ids, mask
