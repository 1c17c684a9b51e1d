"""What each row of a batch has generated so far, for rules that look back."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from .rule import Past, StreamName


class PastRows:
    """Texts and their log-probabilities under every stream, kept step by step."""

    def __init__(self, num_rows: int, names: Iterable[StreamName]) -> None:
        self._texts: list[list[int]] = [[] for _ in range(num_rows)]
        self._log_probs = {name: torch.zeros(num_rows, dtype=torch.float64) for name in names}

    def begin(self, row: int) -> None:
        """A new text begins in a row."""
        self._texts[row] = []
        for log_probs in self._log_probs.values():
            log_probs[row] = 0.0

    def of(self, rows: Sequence[int]) -> Past:
        """As rules see it, on the CPU."""
        return Past(
            texts=[list(self._texts[row]) for row in rows],
            log_probs={name: own[list(rows)] for name, own in self._log_probs.items()},
        )

    def append(
        self, rows: Sequence[int], logits: Mapping[StreamName, Tensor], token_ids: Sequence[int]
    ) -> None:
        """The next token of these rows, by the raw logits (rows, vocab_size) it was drawn from."""
        index = torch.tensor(token_ids)[:, None]
        for name, own in self._log_probs.items():
            log_probs = logits[name].double().log_softmax(-1)
            own[list(rows)] += log_probs.gather(1, index.to(log_probs.device))[:, 0].cpu()
        for row, token_id in zip(rows, token_ids, strict=True):
            self._texts[row].append(token_id)
