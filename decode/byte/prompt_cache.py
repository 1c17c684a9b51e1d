"""Prompts that were read before, so that another k or seed need not read them again."""

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
    """Of its bytes but the first, as `PromptLogits` has them."""


class PromptCache:
    """The prompts read last, of any models; the least recently used one makes room.

    It holds the keys and values of each prompt's tokens beside its log-probabilities. One cache may
    serve many decoders.
    """

    def __init__(self, num_prompts: int = 32) -> None:
        """num_prompts: how many are kept, each counted once a model; 0 keeps none."""
        if num_prompts < 0:
            raise ValueError(f"num_prompts must be >= 0, got {num_prompts}")
        self.num_prompts = num_prompts
        self._prompts: OrderedDict[Hashable, ReadPrompt] = OrderedDict()

    def __len__(self) -> int:
        return len(self._prompts)

    def shelf(self, *owner: Hashable) -> "PromptShelf":
        """The prompts of one owner: what decides how a model reads, beside the prompt."""
        return PromptShelf(self, owner)

    def get(self, key: Hashable) -> ReadPrompt | None:
        """A prompt that is still kept."""
        if key in self._prompts:
            self._prompts.move_to_end(key)
        return self._prompts.get(key)

    def put(self, key: Hashable, prompt: ReadPrompt) -> None:
        """Keep a prompt."""
        self._prompts[key] = prompt
        while len(self._prompts) > self.num_prompts:
            self._prompts.popitem(last=False)


@dataclass(frozen=True, slots=True)
class PromptShelf:
    """A cache as one stream uses it."""

    cache: PromptCache
    owner: Hashable

    @property
    def keeps(self) -> bool:
        """Whether anything is ever kept."""
        return self.cache.num_prompts > 0

    def get(self, text: bytes) -> ReadPrompt | None:
        return self.cache.get((self.owner, text))

    def put(self, text: bytes, prompt: ReadPrompt) -> None:
        self.cache.put((self.owner, text), prompt)
