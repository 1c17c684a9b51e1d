"""How far a text's logits move when it is read in another company: the rounding of these models.

A constant says what rounding does to logits of a size (`step_laws.LOGIT_DEVIATION`). Some models
pass it on many times enlarged, by attention that is nearly a choice: 40 times was measured.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from ..engine.prompts import Prefaced, read_prompts
from ..levels.level import Level
from ..rules.rule import BOTH, Rule
from ..settings import SamplingConfig
from .step_laws import CARRYING_GAP

# V symbols.

NUM_COMPANIONS = 2
"""Rows beside the text, one of them shorter where a prompt can be cut: batches are ragged."""

ENLARGEMENT = 2.0**0.5
"""Deviations of the difference of two readings that count as one of either: 1 / sqrt(2), twice.
With it, no token's log p_s was off by more than 3.9 of them, among 14 pairs of tiny Llamas with
initial weights of 0.3 to 1.0 of which a quarter were off by 4 to 39 of the constant's."""


class MeasuredRounding:
    """A text that is read a second time: with companions, and token by token."""

    def __init__(
        self,
        level: Level,
        rule: Rule,
        prompt: list[int],
        prefaced: Prefaced,
        num_steps: int,
        sampling: SamplingConfig,
    ) -> None:
        readings = {name: own for name, own in rule.streams.items() if name in BOTH}
        half = (len(prompt) + 1) // 2
        can_be_cut = level.name == "token" and level.compares_models and not prefaced
        prompts = [prompt, prompt, prompt[:half] if can_be_cut else prompt]
        rows = list(range(1 + NUM_COMPANIONS))
        longest = max(map(len, [prompt, *prefaced.values()])) + num_steps
        self._temperature = level.warpers(sampling).config.temperature or 1.0
        self._streams = level.open_streams(
            len(rows), longest, sampling, scores_prompts=False, readings=readings
        )
        own = {name: prefaced[name] for name in readings if name in prefaced}
        reading = read_prompts(level, self._streams, prompts, rows, [own] * len(rows))
        self._logits = {name: logits[0] for name, logits in reading.logits.items()}
        self._largest = dict.fromkeys(readings, 0.0)

    def deviations(self, logits: Mapping[str, Tensor]) -> Mapping[str, float]:
        """By stream, nats of a warped logit: the largest so far, as a text keeps what moved it.

        logits: (1, V) raw, of the first reading.
        """
        for name, own in self._logits.items():
            moved = (
                ENLARGEMENT * _spread(logits[name][0].double(), own.double()) / self._temperature
            )
            self._largest[name] = max(self._largest[name], moved)
        return dict(self._largest)

    def feed(self, token_id: int) -> None:
        """The text goes on by a symbol."""
        column = torch.full((1 + NUM_COMPANIONS, 1), token_id)
        for name, stream in self._streams.items():
            self._logits[name] = stream.feed(column, torch.ones_like(column))[0, 0]


def _spread(logits: Tensor, others: Tensor) -> float:
    """Root mean square of what logits (V,) that matter differ by, but for a common shift."""
    matters = torch.isfinite(logits) & torch.isfinite(others)
    matters &= logits >= logits.max() - CARRYING_GAP
    moved = (logits - others.to(logits.device))[matters]
    return (moved - moved.mean()).square().mean().sqrt().item() if len(moved) else 0.0
