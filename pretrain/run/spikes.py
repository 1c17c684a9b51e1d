"""Loss spikes: steps whose loss lies far above those before, and what is done about them."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from ..job_config import SpikeGuardConfig
from ..plan.consumption import sequence_documents
from ..plan.data_plan import DataPlan

MAX_CONSECUTIVE_SKIPS = 8


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


def guard_steps(optimizers: Optimizer, permits_step: Callable[[], bool]) -> None:
    """From now on `optimizers.step` does nothing where `permits_step` says no."""
    take_step = optimizers.step

    def step() -> None:
        if permits_step():
            take_step()

    optimizers.step = step  # type: ignore[assignment]


def spike_line(spike: Spike, plan: DataPlan, *, step: int, batch_size: int) -> dict[str, Any]:
    """The line of spikes.jsonl for a step of `batch_size` sequences.

    JSON has no infinity: a loss or limit that is not finite is written as text.
    """
    loss, limit = (
        value if math.isfinite(value) else str(value) for value in (spike.loss, spike.limit)
    )
    return {
        "step": step,
        "loss": loss,
        "limit": limit,
        "action": "skipped" if spike.is_skipped else "logged",
        "sequences": sequence_documents(plan, step, batch_size),
    }
