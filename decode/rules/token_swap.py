"""TokenSwap: the risky model, its common function words in the safe model's proportions."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from ..settings import checked_texts
from .rule import BOTH, RISKY, SAFE, StepInputs, StreamName, StreamSpec, Symbols
from .unbounded import Unbounded

SEED_LIST = """
the to and of a in that you it for on he with this as we but at they what his from by or she my all
an her about me if your can who out their like would when him them some how which than our into
because these over us its where after any those should may through why before off while around
another both between every each might since against without must during under though until whether
among along within across behind either himself although outside themselves is was be have are do
had has were will did been could does need being am used doing having
"""
"""Source: paper, table "Seed list of functional words for TokenSwap"."""


RETOKENIZED: Mapping[StreamName, StreamSpec] = {"risky": RISKY, "words": SAFE}
"""The streams of two tokenizers. The safe model's has another name than "safe": it says how
likely some tokens are, warped already, and no law of all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSwap(Unbounded):
    """p_r, but the mass that it gives to a list of words is shared out as p_s would; not certified.

    Token level only. Of two tokenizers the risky model's tokens are drawn, the safe model reads
    their text again in its own, and words that are one token of both are swapped; how far p* is
    from p_s is then unknown, and every spend infinite.
    Source: Prashant et al. 2025; paper, appendix "Baseline details".
    """

    words: list[str] = field(default_factory=lambda: SEED_LIST.split())
    """Each counts with a space before it, where that is one token of the pair."""
    _token_ids: dict[str, int] | None = field(default=None, init=False, repr=False, compare=False)
    _reads: Mapping[StreamName, StreamSpec] = field(
        default_factory=lambda: BOTH, init=False, repr=False, compare=False
    )

    name = "token_swap"
    retokenizes = True

    def __post_init__(self) -> None:
        Unbounded.__post_init__(self)
        object.__setattr__(self, "words", checked_texts("words", self.words))
        if not self.words:
            raise ValueError("words must be a list of at least one word")

    @property
    def own_streams(self) -> Mapping[StreamName, StreamSpec]:
        return self._reads

    @property
    def streams(self) -> Mapping[StreamName, StreamSpec]:
        """The safe model is always read; beside it again there is nothing to compare."""
        return self._reads

    def for_symbols(self, symbols: Symbols) -> Self:
        if symbols.name != "token":
            raise ValueError(
                f"TokenSwap swaps tokens that are words: it cannot decode at {symbols.name} level"
            )
        spelled = {word: symbols.symbol_of(f" {word}") for word in self.words}
        known = {word: token_id for word, token_id in spelled.items() if token_id is not None}
        if not known:
            raise ValueError(
                f"none of the {len(self.words)} words is one token of both models: "
                + ", ".join(self.words)
            )
        rule = replace(self)
        object.__setattr__(rule, "_token_ids", known)
        object.__setattr__(rule, "_reads", BOTH if symbols.compares_models else RETOKENIZED)
        return rule

    @property
    def used_words(self) -> Mapping[str, list[str]] | None:
        if self._token_ids is None:
            return None
        left_out = [word for word in self.words if word not in self._token_ids]
        return {"swapped": list(self._token_ids), "left_out": left_out}

    def logits(self, inputs: StepInputs) -> Tensor:
        if self._token_ids is None:
            raise ValueError("TokenSwap swaps tokens of a level: use a Decoder, or `for_symbols`")
        risky = inputs.warped("risky").double().log_softmax(-1)
        safe = inputs.logits["words"] if "words" in self._reads else inputs.warped("safe")
        index = torch.tensor(sorted({*self._token_ids.values()}), device=risky.device).long()
        listed, shares = risky[:, index].logsumexp(-1), safe.double()[:, index]
        swapped = shares.log_softmax(-1) + listed[:, None]  # sums to 1 however low they are
        # A safe model that gives the list nothing says nothing of its proportions.
        is_silent = (shares == -torch.inf).all(-1, keepdim=True)
        return risky.index_copy(1, index, torch.where(is_silent, risky[:, index], swapped))
