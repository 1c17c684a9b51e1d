"""Optimizers that ask before they take a step."""

from collections.abc import Callable, Iterator
from typing import Any

from torch.optim import Optimizer
from torchtitan.components.optimizer import OptimizersContainer


class GuardedOptimizers:
    """torchtitan's optimizers, of which `step` does nothing where `permits_step` says no."""

    def __init__(self, optimizers: OptimizersContainer) -> None:
        self._optimizers = optimizers
        self.permits_step: Callable[[], bool] = _always

    def step(self) -> None:
        if self.permits_step():
            self._optimizers.step()

    def zero_grad(self) -> None:
        self._optimizers.zero_grad()

    def register_step_post_hook(self, hook: Callable[..., None]) -> Any:
        return self._optimizers.register_step_post_hook(hook)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self._optimizers.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._optimizers.load_state_dict(state_dict)

    def __iter__(self) -> Iterator[Optimizer]:
        return iter(self._optimizers)

    def __len__(self) -> int:
        return len(self._optimizers)


def _always() -> bool:
    return True
