"""One model's KV cache over a left-padded batch."""

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

CHUNK_LOGITS = 1 << 24
"""Most logits held at once while a prompt is read: 64 MiB in float32."""


class ModelStream:
    """Feeds columns of a batch to one model; what was fed before is remembered.

    Rows are left-padded and positions count real tokens only, so a row's logits do not depend on
    its padding (absolute position embeddings included).
    """

    def __init__(self, model: PreTrainedModel, batch_size: int, vocab_size: int) -> None:
        self.model = model
        self.vocab_size = vocab_size
        self._cache = DynamicCache(config=model.config)
        self._mask = torch.zeros(batch_size, 0, dtype=torch.long, device=model.device)
        self.num_forwards = 0

    @torch.inference_mode()
    def feed(self, token_ids: Tensor, mask: Tensor) -> Tensor:
        """Logits (batch, columns, vocab_size) after each of the new columns, in the model's dtype.

        token_ids: (batch, columns) int64. mask: (batch, columns) int64, 0 for padding.
        """
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
        self.num_forwards += 1
        logits: Tensor = output.logits[..., : self.vocab_size]
        return logits

    def feed_in_chunks(self, token_ids: Tensor, mask: Tensor) -> Iterator[tuple[int, Tensor]]:
        """(first column, logits) of consecutive chunks, so that (L, V) logits never exist at once.

        Logits of a chunk are (batch, chunk, vocab_size); shapes of the input as in `feed`.
        """
        batch_size, num_columns = token_ids.shape
        width = max(1, CHUNK_LOGITS // (batch_size * self.vocab_size))
        for start in range(0, num_columns, width):
            columns = slice(start, start + width)
            yield start, self.feed(token_ids[:, columns], mask[:, columns])
