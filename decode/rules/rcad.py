"""RCAD: the risky model pushed away from what it would write behind a protected passage."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .rule import RISKY, Reading, StepInputs, StreamName
from .unbounded import Unbounded


@dataclass(frozen=True, kw_only=True, slots=True)
class RCAD(Unbounded):
    """Reversed context-aware decoding, p* ~ (1 + alpha) z_r(x) - alpha z_r(passage, x), then the
    warpers; not certified.

    Each request brings the passage, retrieved for its prompt. Source: Wei et al. 2024; paper,
    appendix "Baseline details".
    """

    alpha: float = 0.5
    """At least 0; the paper has 0.1 to 1. 0 is the risky model alone."""

    name = "rcad"

    def __post_init__(self) -> None:
        if not 0.0 <= self.alpha < float("inf"):
            raise ValueError(f"alpha must be finite and >= 0, got {self.alpha}")

    @property
    def own_streams(self) -> Mapping[StreamName, Reading]:
        return {"risky": RISKY, "passage": Reading("risky", takes_passage=True)}

    @property
    def gain(self) -> float:
        return 1.0 + 2.0 * self.alpha

    def logits(self, inputs: StepInputs) -> Tensor:
        # In float64, as masks may be the lowest float32, of which alpha times is none any more.
        plain, behind = (inputs.logits[name].double() for name in ("risky", "passage"))
        # A symbol that is impossible behind the passage alone counts as its least likely one: the
        # formula would make it the only one left.
        least = behind.masked_fill(behind == -torch.inf, torch.inf).amin(-1, keepdim=True)
        contrast = (1.0 + self.alpha) * plain - self.alpha * torch.maximum(behind, least)
        return inputs.warp(contrast.masked_fill(plain == -torch.inf, -torch.inf))
