"""A step on the device as one CUDA graph."""

from collections.abc import Callable

import torch

NUM_WARM_UPS = 3
"""Calls before the capture: kernels are compiled and libraries take their workspaces in them."""

NUM_TIMED = 5
"""Replays by which graphs are compared."""


class CapturedStep:
    """A call replays the kernels that one call of `step` launched: one launch from the host.

    `step` runs a few times first, so no row may hold a request then. Its tensors must stay where
    they are as long as this object lives.
    """

    def __init__(self, step: Callable[[], None], device: torch.device) -> None:
        self._device = device
        with torch.cuda.device(device):
            _warm_up(step)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                step()

    def __call__(self) -> None:
        """Advance by one step; returns before the device has done it."""
        self._graph.replay()

    def measured_ms(self) -> float:
        """Mean time of a few replays; no row may hold a request."""
        with torch.cuda.device(self._device):
            start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._graph.replay()
            start.record()
            for _ in range(NUM_TIMED):
                self._graph.replay()
            end.record()
            end.synchronize()
            elapsed_ms: float = start.elapsed_time(end)
            return elapsed_ms / NUM_TIMED


def _warm_up(step: Callable[[], None]) -> None:
    # On a stream of its own, as a capture of what ran on the default stream is refused.
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(NUM_WARM_UPS):
            step()
    torch.cuda.current_stream().wait_stream(stream)
