"""Rules that mix models: CP-Fuse and TokenSwap both, RCAD the risky one after two prompts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from .rule import BOTH, RISKY, SAFE, OpenRule, StepInputs, StreamName, StreamSpec, Symbols
from .unbounded import Unbounded

# B rows, V vocabulary, P pairs of weights, C of them at once.

LARGEST_WEIGHT = 10
"""Above 2 the grid is 3, 4, ... up to it."""

LARGEST_GRID = 100
"""Points of a weight in [0, 2]: a step tries the square of it, 10,000 mixtures of the vocabulary,
36 times as many as the paper's 10 with those above."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CPFuse(Unbounded):
    """p* ~ p_r**b p_s**c, (b, c) of a grid with the least max over models of KL(p* || p_i) plus
    the debt of the text so far to that model; not certified.

    Source: Abad et al. 2025, "Copyright-protected language generation via adaptive model fusion";
    paper, appendix "Baseline details".
    """

    grid_size: int = 10
    """Points of a weight in [0, 2]; the paper's 10 makes a grid of 18 x 18 with those above."""
    warping: Literal["after", "before"] = "after"
    """Whether warpers act on the mixture, as in the authors' code, or on both models before."""

    name = "cp_fuse"
    reads = BOTH
    looks_back = True

    def __post_init__(self) -> None:
        Unbounded.__post_init__(self)
        if not 2 <= self.grid_size <= LARGEST_GRID:
            raise ValueError(f"grid_size must be in [2, {LARGEST_GRID}], got {self.grid_size}")

    @property
    def gain(self) -> float:
        return 2.0 * LARGEST_WEIGHT

    def open(self, level: Symbols) -> OpenRule:
        return self.drawing(self._logits)

    def _logits(self, inputs: StepInputs) -> Tensor:
        assert inputs.past is not None
        names = ("risky", "safe")
        is_last = self.warping == "after"
        raw = [inputs.logits[name] if is_last else inputs.warped(name) for name in names]
        log_probs = torch.stack([logits.double().log_softmax(-1) for logits in raw])
        log_probs.masked_fill_((log_probs == -torch.inf).any(0), -torch.inf)
        owed = torch.stack([inputs.past.log_probs[name].to(log_probs) for name in names])
        weights = fused_weights(log_probs, owed, self.grid_size)
        fused = (weights.T[..., None] * log_probs.clamp_min(LOWEST)).sum(0)
        fused.masked_fill_(log_probs[0] == -torch.inf, -torch.inf)
        return inputs.warp(fused) if is_last else fused


LOWEST = torch.finfo(torch.float64).min / (4 * LARGEST_WEIGHT)
"""Replaces -inf where it is multiplied by a weight of 0; both models' sum stays finite."""


def grid(size: int) -> list[float]:
    """One weight's values: [0, 2] in `size` points, then whole numbers up to LARGEST_WEIGHT."""
    steps = [2.0 * step / (size - 1) for step in range(size - 1)]
    return steps + [float(weight) for weight in range(2, LARGEST_WEIGHT + 1)]


def fused_weights(log_probs: Tensor, owed: Tensor, grid_size: int) -> Tensor:
    """The first pair of the grid with the least loss, for each row.

    log_probs: (2, B, V) float64, -inf for both models where either has it. owed: (2, B) log p_i of
    the text so far, which a model's divergence counts less.
    Returns: (B, 2) float64. The loss is max_i(KL(q || p_i) - owed_i) for the mixture q.
    """
    values = torch.tensor(grid(grid_size), dtype=torch.float64, device=log_probs.device)
    losses = []
    for weight in values:  # the first model's varies slowest; a row of the grid fits in memory
        pairs = torch.stack([weight.expand_as(values), values], 1)
        losses.append(_losses(log_probs, owed, pairs))
    best = torch.cat(losses).argmin(0)
    return torch.stack([values[best // len(values)], values[best % len(values)]], 1)


def _losses(log_probs: Tensor, owed: Tensor, pairs: Tensor) -> Tensor:
    """(C, B): of each pair of weights (C, 2) in each row."""
    is_shared = log_probs[0] > -torch.inf
    finite = log_probs.clamp_min(LOWEST)
    mixed = torch.einsum("cm,mbv->cbv", pairs, finite).masked_fill_(~is_shared, -torch.inf)
    log_mass = mixed.logsumexp(-1)
    probs = (mixed - log_mass[..., None]).exp_()
    finite = finite.masked_fill(~is_shared, 0.0)
    expected = torch.einsum("cbv,mbv->mcb", probs, finite)
    entropy = torch.einsum("cm,mcb->cb", pairs, expected) - log_mass
    return (-expected - owed[:, None]).amax(0) + entropy


@dataclass(frozen=True, kw_only=True, slots=True)
class RCAD(Unbounded):
    """Reversed context-aware decoding, p* ~ (1 + alpha) z_r(x) - alpha z_r(passage, x), then the
    warpers; not certified.

    Each request brings the passage, retrieved for its prompt. Source: Wei et al. 2024; paper,
    appendix "Baseline details".
    """

    alpha: float = 0.5
    """Weight of 0 or more; the paper has 0.1 to 1. 0 is the risky model alone."""

    name = "rcad"

    def __post_init__(self) -> None:
        Unbounded.__post_init__(self)
        if not 0.0 <= self.alpha < float("inf"):
            raise ValueError(f"alpha must be finite and >= 0, got {self.alpha}")

    @property
    def reads(self) -> Mapping[StreamName, StreamSpec]:
        return {"risky": RISKY, "passage": StreamSpec("risky", takes_passage=True)}

    @property
    def gain(self) -> float:
        return 1.0 + 2.0 * self.alpha

    def open(self, level: Symbols) -> OpenRule:
        return self.drawing(self._logits)

    def _logits(self, inputs: StepInputs) -> Tensor:
        # In float64, as masks may be the lowest float32, of which alpha times is none any more.
        plain, after = (inputs.logits[name].double() for name in ("risky", "passage"))
        # A symbol that is impossible after the passage alone counts as its least likely one: the
        # formula would make it the only one left.
        least = after.masked_fill(after == -torch.inf, torch.inf).amin(-1, keepdim=True)
        contrast = (1.0 + self.alpha) * plain - self.alpha * torch.maximum(after, least)
        return inputs.warp(contrast.masked_fill(plain == -torch.inf, -torch.inf))


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
        swaps = {word: token_id for word, token_id in spelled.items() if token_id is not None}
        if not swaps:
            raise ValueError(
                f"none of the {len(self.words)} words is one token of both models: "
                + ", ".join(self.words)
            )
        left_out = [word for word in self.words if word not in swaps]
        return self.drawing(
            partial(swapped, sorted({*swaps.values()})),
            streams=BOTH if level.compares_models else RETOKENIZED,
            used_words={"swapped": list(swaps), "left_out": left_out},
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
