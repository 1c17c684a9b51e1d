"""Prompts that were read before, so that another k or seed need not read them again."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace

from torch import Tensor

from ..models.stream import UNSCORED
from .byte_row import ByteRow


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """One prompt as one model has read it: a row that nothing was appended to."""

    row: ByteRow
    states: list[tuple[Tensor, Tensor]]
    """Keys and values by layer, (H, slots, D) each."""
    token_log_probs: Tensor
    """Of its bytes but the first, as `PromptLogits` has them."""

    @property
    def num_bytes(self) -> int:
        """Memory of the keys and values."""
        return sum(keys.nbytes + values.nbytes for keys, values in self.states)


class PromptCache:
    """The prompts read last, of any models; the least recently used ones make room.

    It holds the keys and values of each prompt's tokens, on their models' devices, beside the
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

    def shelf(self, *owner: Hashable, scored: "PromptShelf | None" = None) -> "PromptShelf":
        """The prompts of one owner: what decides how a model reads, beside the prompt.

        scored: where the same prompts lie with log-probabilities that this owner does not ask for.
        """
        return PromptShelf(self, owner, scored)

    def get(self, key: Hashable) -> ReadPrompt | None:
        """A prompt that is still kept."""
        if key in self._prompts:
            self._prompts.move_to_end(key)
        return self._prompts.get(key)

    def put(self, key: Hashable, prompt: ReadPrompt) -> None:
        """Keep a prompt; one that is not kept already."""
        self._prompts[key] = prompt
        self.num_bytes += prompt.num_bytes
        while self.num_bytes > self.max_bytes:
            _, oldest = self._prompts.popitem(last=False)
            self.num_bytes -= oldest.num_bytes


@dataclass(frozen=True, slots=True)
class PromptShelf:
    """A cache as one stream uses it."""

    cache: PromptCache
    owner: Hashable
    scored: "PromptShelf | None" = None

    @property
    def keeps(self) -> bool:
        """Whether anything is ever kept."""
        return self.cache.max_bytes > 0

    def get(self, text: bytes) -> ReadPrompt | None:
        own = self.cache.get((self.owner, text))
        if own is not None or self.scored is None:
            return own
        more = self.scored.get(text)
        return more if more is None else replace(more, token_log_probs=UNSCORED)

    def put(self, text: bytes, prompt: ReadPrompt) -> None:
        self.cache.put((self.owner, text), prompt)
