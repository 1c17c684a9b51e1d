"""Loss spikes: steps whose loss lies far above that of the steps before."""

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

MAX_CONSECUTIVE_SKIPS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class SpikeGuardConfig:
    """What counts as a spike, and what is done about it."""

    action: Literal["off", "log", "skip"] = "log"
    """log: write the step's documents to spikes.jsonl; skip: also leave the weights as they are"""
    window: int = 128
    """Losses of this many steps before are compared with; no step is a spike before that many"""
    deviations: float = 6.0
    """A spike exceeds their mean by so many standard deviations"""
    min_rise_nats: float = 0.2
    """And by at least this much"""

    def __post_init__(self) -> None:
        if self.window < 2 or self.deviations <= 0 or self.min_rise_nats < 0:
            raise ValueError(
                "spike_guard needs window >= 2, deviations > 0 and min_rise_nats >= 0, got "
                f"{self.window}, {self.deviations} and {self.min_rise_nats}"
            )


@dataclass(frozen=True, slots=True)
class Spike:
    """A step's loss and the limit that it exceeded, in nats a token."""

    loss: float
    limit: float
    is_skipped: bool


class SpikeGuard:
    """Watches the loss of every step; its state belongs into a checkpoint.

    A spike enters the window at its limit, not at its height: so the next one still shows, and a
    level that stays higher is accepted after a while. A loss that is not finite is always a spike.
    """

    def __init__(self, config: SpikeGuardConfig) -> None:
        self._config = config
        self._losses: deque[float] = deque(maxlen=config.window)
        self._num_skips = 0

    def check(self, loss: float) -> Spike | None:
        """The spike that a step of this loss is, or None.

        Raises: RuntimeError when one more skip would be the ninth in a row.
        """
        limit = self._limit()
        if loss <= limit and math.isfinite(loss):
            self._losses.append(loss)
            self._num_skips = 0
            return None
        if math.isfinite(limit):
            self._losses.append(limit)
        is_skipped = self._config.action == "skip"
        self._num_skips += is_skipped
        if self._num_skips > MAX_CONSECUTIVE_SKIPS:
            raise RuntimeError(
                f"spike_guard: {MAX_CONSECUTIVE_SKIPS} steps in a row were skipped and the loss is "
                f"still {loss}, above {limit}: go back to an earlier checkpoint"
            )
        return Spike(loss, limit, is_skipped)

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
