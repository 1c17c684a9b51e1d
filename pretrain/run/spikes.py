"""Loss spikes: steps whose loss lies far above those before, and what is done about them."""

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

from ...errors import AnchoredError
from ..job_config import SpikeGuardConfig

MAX_CONSECUTIVE_SKIPS = 8


@dataclass(frozen=True, slots=True)
class Spike:
    """A step's loss and the limit that it exceeded, in nats per token; or what is not finite."""

    loss: float
    limit: float
    grad_norm: float
    action: str
    """logged; skipped, as the guard is set; refused, as every step that is not finite is."""

    def __str__(self) -> str:
        return (
            f"{self.action}, as the loss is {self.loss:.4f} (limit {self.limit:.4f}) and the "
            f"gradients' norm {self.grad_norm:.4f}"
        )


class SpikeGuard:
    """Watches the loss of every step; its state belongs into a checkpoint.

    A spike enters the window at its limit, not at its height: so the next one still shows, and a
    level that stays higher is accepted after a while. What is not finite is refused in every mode.
    """

    def __init__(self, config: SpikeGuardConfig) -> None:
        self._config = config
        self._losses: deque[float] = deque(maxlen=config.window)
        self._num_skips = 0
        self._num_refused = 0  # in a row; a resumed run counts anew

    def check(self, loss: float, grad_norm: float) -> Spike | None:
        """The spike that a step of this loss is, or None."""
        limit = self._limit()
        is_finite = math.isfinite(loss) and math.isfinite(grad_norm)
        action = self._config.action
        self._num_refused = 0 if is_finite else self._num_refused + 1
        is_spike = not is_finite or (loss > limit and action != "off")
        entry = limit if is_spike else loss
        if action != "off" and math.isfinite(entry):
            self._losses.append(entry)
        if not is_spike:
            self._num_skips = 0
            return None
        self._num_skips += action == "skip"
        done = "skipped" if action == "skip" else "logged"
        return Spike(loss, limit, grad_norm, done if is_finite else "refused")

    def end_if_lost(self, step: int) -> None:
        """Raises AnchoredError when too many steps in a row moved no weights; step: the last."""
        advice = "see spikes.jsonl, and checkpoint.fork_from to skip their data or change a setting"
        if self._num_refused >= self._config.max_nonfinite_steps:
            raise AnchoredError(
                f"spike_guard: {self._num_refused} steps up to step {step} had a loss or gradients "
                f"that are not finite, and none of them was taken: {advice}"
            )
        if self._num_skips > MAX_CONSECUTIVE_SKIPS:
            raise AnchoredError(
                f"spike_guard: {self._num_skips} steps up to step {step} were skipped and the loss "
                f"is still above its limit: {advice}"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self._losses), "num_skips": self._num_skips}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._losses = deque(state_dict["losses"], maxlen=self._config.window)
        self._num_skips = state_dict["num_skips"]

    def _limit(self) -> float:
        if len(self._losses) < self._config.window:
            return math.inf
        mean = sum(self._losses) / len(self._losses)
        variance = sum((loss - mean) ** 2 for loss in self._losses) / len(self._losses)
        rise = self._config.deviations * math.sqrt(variance)
        return mean + max(rise, self._config.min_rise_nats)
