"""TokenSwap: the risky model, its common function words in the safe model's proportions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from .rule import BOTH, RISKY, SAFE, OpenRule, StepInputs, StreamName, StreamSpec, Symbols
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
likely some tokens are, warped already, and no distribution over all of them."""


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

    name = "token_swap"
    retokenizes = True

    def __post_init__(self) -> None:
        Unbounded.__post_init__(self)
        if not self.words:
            raise ValueError("words must be a list of at least one word")

    @property
    def reads(self) -> Mapping[StreamName, StreamSpec]:
        # The safe model is always read: next to it again there is nothing to compare.
        return BOTH

    def open(self, level: Symbols) -> OpenRule:
        if level.name != "token":
            raise ValueError(
                f"TokenSwap swaps tokens that are words: it cannot decode at {level.name} level"
            )
        spelled = {word: level.symbol_of(f" {word}") for word in self.words}
        known = {word: token_id for word, token_id in spelled.items() if token_id is not None}
        if not known:
            raise ValueError(
                f"none of the {len(self.words)} words is one token of both models: "
                + ", ".join(self.words)
            )
        left_out = [word for word in self.words if word not in known]
        return self.drawing(
            partial(swapped, sorted({*known.values()})),
            streams=BOTH if level.compares_models else RETOKENIZED,
            used_words={"swapped": list(known), "left_out": left_out},
        )


def swapped(token_ids: list[int], inputs: StepInputs) -> Tensor:
    """(batch, vocab_size) log p_r, the mass of these tokens shared out as the safe model would."""
    risky = inputs.warped("risky").double().log_softmax(-1)
    safe = inputs.logits["words"] if "words" in inputs.logits else inputs.warped("safe")
    index = torch.tensor(token_ids, device=risky.device)
    listed, shares = risky[:, index].logsumexp(-1), safe.double()[:, index]
    shared = shares.log_softmax(-1) + listed[:, None]  # sums to 1 however low they are
    # A safe model that gives the list nothing says nothing of its proportions.
    is_silent = (shares == -torch.inf).all(-1, keepdim=True)
    return risky.index_copy(1, index, torch.where(is_silent, risky[:, index], shared))
