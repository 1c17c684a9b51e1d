"""MemFree: the risky model, never completing an n-gram of a blocklist."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from .rule import StepInputs, Symbols
from .unbounded import Unbounded

NGrams = Mapping[tuple[int, ...], Sequence[int]]
"""By the first n - 1 symbols: those that complete an n-gram."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemFree(Unbounded):
    """p_r without the symbols that would complete an n-gram of the passages; not certified.

    N-grams are of generated symbols, the prompt left out, blocked behind all warpers. Where every
    symbol that is left would complete one, p_r stands as it is: `blocked` texts then hold one.
    Source: Ippolito et al. 2023; paper, appendix "Baseline details".
    """

    passages: list[str]
    """The texts whose n-grams are blocked: those retrieved for all prompts of a run."""
    n: int = 5
    """Tokens of an n-gram, at least 1; at byte level 4 n bytes (`Level.symbols_per_token`)."""
    _ngrams: NGrams | None = field(default=None, init=False, repr=False, compare=False)

    name = "memfree"
    looks_back = True

    def __post_init__(self) -> None:
        if isinstance(self.passages, str):
            raise ValueError("passages must be a list of texts, got one text")
        if type(self.n) is not int or self.n < 1:
            raise ValueError(f"n must be a whole number >= 1, got {self.n!r}")
        object.__setattr__(self, "passages", list(self.passages))

    def for_symbols(self, symbols: Symbols) -> Self:
        texts = (symbols.encode_continuation(passage) for passage in self.passages)
        rule = replace(self)
        object.__setattr__(rule, "_ngrams", ngrams(texts, self.n * symbols.symbols_per_token))
        return rule

    def settings(self) -> dict[str, Any]:
        own = {"n": self.n, "passages": self.passages}
        return own if self.compared else {**own, "compared": False}

    def logits(self, inputs: StepInputs) -> Tensor:
        assert inputs.past is not None
        warped = inputs.warped("risky").clone()
        for row, text in enumerate(inputs.past.texts):
            if blocked := self.blocked(text):
                index = torch.tensor(blocked, device=warped.device)
                left = warped[row].index_fill(0, index, -torch.inf)
                warped[row] = torch.where(left.isfinite().any(), left, warped[row])
        return warped

    def blocked(self, text: Sequence[int]) -> Sequence[int]:
        """Symbols that would complete a blocked n-gram behind a generated text.

        Raises ValueError for a rule that was not opened for a level, see `for_symbols`.
        """
        if self._ngrams is None:
            raise ValueError("MemFree blocks symbols of a level: use a Decoder, or `for_symbols`")
        return self._ngrams.get(tuple(text[max(0, len(text) - self._reach) :]), ())

    @property
    def _reach(self) -> int:
        return len(next(iter(self._ngrams or ((),)), ()))


def ngrams(texts: Iterable[Sequence[int]], n: int) -> NGrams:
    """All n-grams of the texts, by their first n - 1 symbols."""
    found: dict[tuple[int, ...], set[int]] = {}
    for text in texts:
        for end in range(n, len(text) + 1):
            *head, last = text[end - n : end]
            found.setdefault(tuple(head), set()).add(last)
    return {head: sorted(lasts) for head, lasts in found.items()}
