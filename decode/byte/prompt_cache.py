"""Prompts that were read, kept for another k, rule or seed."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor

from .byte_row import ByteRow


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """One prompt as one model has read it: a row that nothing was appended to."""

    row: ByteRow
    states: list[tuple[Tensor, Tensor]]
    """Keys and values by layer, (H, slots, D) each."""
    token_log_probs: Tensor
    """Log-probabilities of its bytes but the first, as `PromptLogits` has them."""


class PromptCache:
    """The prompts read last, of any models; the least recently used ones make room.

    It holds the keys and values of each prompt's tokens, on their models' devices, with the
    log-probabilities. One cache may serve many decoders.
    """

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        """max_bytes: memory for keys and values; 0 keeps nothing."""
        if max_bytes < 0:
            raise ValueError(f"max_bytes must be >= 0, got {max_bytes}")
        self.max_bytes, self.num_bytes = max_bytes, 0
        self._prompts: OrderedDict[Hashable, ReadPrompt] = OrderedDict()

    def __len__(self) -> int:
        return len(self._prompts)

    def get(self, key: Hashable) -> ReadPrompt | None:
        """A prompt that is still kept."""
        if key in self._prompts:
            self._prompts.move_to_end(key)
        return self._prompts.get(key)

    def put(self, key: Hashable, prompt: ReadPrompt) -> None:
        """Keep a prompt; one that is not kept already."""
        self._prompts[key] = prompt
        self.num_bytes += _num_bytes(prompt)
        while self.num_bytes > self.max_bytes:
            _, oldest = self._prompts.popitem(last=False)
            self.num_bytes -= _num_bytes(oldest)


def _num_bytes(prompt: ReadPrompt) -> int:
    return sum(keys.nbytes + values.nbytes for keys, values in prompt.states)
