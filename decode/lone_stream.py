"""One model's memory of a single text: any causal model, with whatever cache it makes itself."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..kernels.token_log_probs import token_log_probs
from .stream import UNSCORED, PromptLogits, chunks

# L tokens of the prompt, T new columns.

CACHES = ("past_key_values", "cache_params", "state")
"""What transformers' models call the memory that they return: attention, Mamba, RWKV."""


class LoneStream:
    """A text that is read and continued as `generate` of transformers would do it, without padding.

    The prompt takes one forward, each later token another: a recurrent state takes many tokens at
    once only where a text begins. A model that returns no memory reads the whole text every time,
    since what it may keep within its modules would be shared with other streams.
    """

    def __init__(
        self, model: PreTrainedModel, vocab_size: int, *, scores_prompts: bool = True
    ) -> None:
        """scores_prompts: whether reading gives log-probabilities of the prompt's own tokens."""
        self.model, self.vocab_size = model, vocab_size
        self.scores_prompts = scores_prompts
        self._text: list[int] = []
        self._cache: dict[str, Any] = {}

    @property
    def rereads(self) -> bool:
        """Whether every new token makes the model read the whole text again."""
        return not self._cache

    @torch.inference_mode()
    def read(self, prompts: list[list[int]], rows: list[int]) -> PromptLogits:
        """Read the one prompt; its (L, vocab_size) logits exist once."""
        if rows != [0] or self._text:
            raise ValueError(f"a lone text is read into an empty row 0, got rows {rows}")
        logits = self._forward(prompts[0])
        log_probs = self._own_log_probs(logits, prompts[0]) if self.scores_prompts else UNSCORED
        return PromptLogits(logits[-1:], [log_probs], 1)

    @torch.inference_mode()
    def feed(self, token_ids: Tensor, mask: Tensor) -> Tensor:
        """Logits (1, T, vocab_size) after each new column; a single row has no padding."""
        assert bool(mask.all()), "a lone row has nothing to be padded to"
        return torch.cat([self._forward([token]) for token in token_ids[0].tolist()])[None]

    @torch.inference_mode()
    def feed_rows(self, rows: list[int], tokens: list[list[int]]) -> Tensor:
        """Logits (1, vocab_size) after the last of the new tokens; see Stream."""
        for token in tokens[0]:
            logits = self._forward([token])
        return logits

    def free(self, row: int) -> None:
        """Forget the text."""
        self._text, self._cache = [], {}

    def _forward(self, tokens: list[int]) -> Tensor:
        """(new tokens, vocab_size) after a whole prompt, or after one token more."""
        self._text += tokens
        unread = tokens if self._cache else self._text
        positions = torch.arange(len(self._text) - len(unread), len(self._text))
        output = self.model(
            input_ids=torch.tensor([unread], device=self.model.device),
            position_ids=positions[None].to(self.model.device),
            use_cache=True,
            **self._cache,
        )
        self._cache = {name: output[name] for name in CACHES if output.get(name) is not None}
        logits: Tensor = output.logits[0, -len(tokens) :, : self.vocab_size]
        return logits

    def _own_log_probs(self, logits: Tensor, prompt: list[int]) -> Tensor:
        """(L - 1,) float64 on the CPU: of the prompt's tokens but the first."""
        targets = torch.tensor(prompt[1:], device=logits.device)
        parts = [
            token_log_probs(logits[columns], targets[columns]).cpu()
            for columns in chunks(self.vocab_size, 1, len(targets))
        ]
        return torch.cat([UNSCORED, *parts])
