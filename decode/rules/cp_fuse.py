"""CP-Fuse: the geometric mixture of both models that stays nearest to whichever wrote less."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .rule import BOTH, StepInputs
from .unbounded import Unbounded

# B rows, V vocabulary, P pairs of weights, C of them at once.

LARGEST_WEIGHT = 10
"""Above 2 the grid is 3, 4, ... up to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CPFuse(Unbounded):
    """p* ~ p_r**b p_s**c, (b, c) of a grid with the least max over models of KL(p* || p_i) plus
    what the text so far owes that model; not certified.

    Source: Abad et al. 2025, "Copyright-protected language generation via adaptive model fusion";
    paper, appendix "Baseline details".
    """

    grid_size: int = 10
    """Points of a weight in [0, 2]; the paper's 10 makes a grid of 18 x 18 with those above."""
    warping: Literal["after", "before"] = "after"
    """Whether warpers act on the mixture, as in the authors' code, or on both models before."""

    name = "cp_fuse"
    own_streams = BOTH
    looks_back = True

    def __post_init__(self) -> None:
        if type(self.grid_size) is not int or self.grid_size < 2:
            raise ValueError(f"grid_size must be a whole number >= 2, got {self.grid_size!r}")
        if self.warping not in ("after", "before"):
            raise ValueError(f"warping must be after or before, got {self.warping!r}")

    @property
    def gain(self) -> float:
        return 2.0 * LARGEST_WEIGHT

    def logits(self, inputs: StepInputs) -> Tensor:
        assert inputs.past is not None
        names = ("risky", "safe")
        is_last = self.warping == "after"
        raw = [inputs.logits[name] if is_last else inputs.warped(name) for name in names]
        log_probs = torch.stack([each.double().log_softmax(-1) for each in raw])
        log_probs.masked_fill_((log_probs == -torch.inf).any(0), -torch.inf)
        owed = torch.stack([inputs.past.log_probs[name].to(log_probs) for name in names])
        weights = fused_weights(log_probs, owed, self.grid_size)
        fused = (weights.T[..., None] * log_probs.clamp_min(LOWEST)).sum(0)
        fused.masked_fill_(log_probs[0] == -torch.inf, -torch.inf)
        return inputs.warp(fused) if is_last else fused


LOWEST = torch.finfo(torch.float64).min / (4 * LARGEST_WEIGHT)
"""In place of -inf where it is multiplied by a weight of 0; both models' sum stays finite."""


def grid(size: int) -> list[float]:
    """One weight's values: [0, 2] in `size` points, then whole numbers up to LARGEST_WEIGHT."""
    steps = [2.0 * place / (size - 1) for place in range(size - 1)]
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
