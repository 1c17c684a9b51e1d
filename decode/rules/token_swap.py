"""TokenSwap: the risky model, its common function words in the safe model's proportions."""

import logging
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from .rule import BOTH, StepInputs, Symbols
from .unbounded import Unbounded

logger = logging.getLogger(__name__)

SEED_LIST = """
the to and of a in that you it for on he with this as we but at they what his from by or she my all
an her about me if your can who out their like would when him them some how which than our into
because these over us its where after any those should may through why before off while around
another both between every each might since against without must during under though until whether
among along within across behind either himself although outside themselves is was be have are do
had has were will did been could does need being am used doing having
"""
"""Source: paper, table "Seed list of functional words for TokenSwap"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenSwap(Unbounded):
    """p_r, but the mass that it gives to a list of words is shared out as p_s would; not certified.

    Token level only. Source: Prashant et al. 2025; paper, appendix "Baseline details".
    """

    words: list[str] = field(default_factory=lambda: SEED_LIST.split())
    """Each counts with a space before it, where that is one token of the pair."""
    _token_ids: list[int] | None = field(default=None, init=False, repr=False, compare=False)

    name = "token_swap"
    own_streams = BOTH

    def __post_init__(self) -> None:
        if isinstance(self.words, str) or not self.words:
            raise ValueError("words must be a list of at least one word")
        object.__setattr__(self, "words", list(self.words))

    def for_symbols(self, symbols: Symbols) -> Self:
        if symbols.name != "token":
            raise ValueError(
                f"TokenSwap swaps tokens that are words: it cannot decode at {symbols.name} level"
            )
        spelled = {word: symbols.encode_continuation(f" {word}") for word in self.words}
        if dropped := [word for word, token_ids in spelled.items() if len(token_ids) != 1]:
            logger.warning(
                "TokenSwap leaves out %d of %d words, which are not one token: %s",
                len(dropped),
                len(self.words),
                ", ".join(dropped),
            )
        swapped = {token_ids[0] for token_ids in spelled.values() if len(token_ids) == 1}
        rule = replace(self)
        object.__setattr__(rule, "_token_ids", sorted(swapped))
        return rule

    def settings(self) -> dict[str, Any]:
        return {"words": self.words}

    def logits(self, inputs: StepInputs) -> Tensor:
        if self._token_ids is None:
            raise ValueError("TokenSwap swaps tokens of a level: use a Decoder, or `for_symbols`")
        risky, safe = (inputs.warped(name).double().log_softmax(-1) for name in ("risky", "safe"))
        index = torch.tensor(self._token_ids, device=risky.device, dtype=torch.long)
        listed, shares = risky[:, index].logsumexp(-1), safe[:, index]
        swapped = shares - shares.logsumexp(-1, keepdim=True) + listed[:, None]
        # A safe model that gives the list nothing says nothing of its proportions.
        has_shares = (shares > -torch.inf).any(-1, keepdim=True)
        return risky.index_copy(1, index, torch.where(has_shares, swapped, risky[:, index]))
