"""Two pieces of work on the device that do not wait for each other."""

from collections.abc import Callable

import torch
from torch import Tensor


class DeviceFork:
    """Calls two functions: on two streams of a CUDA device, or one after the other.

    Inside the capture of a CUDA graph the two become branches of it that join again.
    """

    def __init__(self, device: torch.device | None) -> None:
        """device: None for one stream, which is all there is without CUDA."""
        is_forked = device is not None and device.type == "cuda"
        self._side = torch.cuda.Stream(device) if is_forked else None  # type: ignore[no-untyped-call]

    def __call__(
        self, first: Callable[[], Tensor], second: Callable[[], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Their results; what is launched from here on waits for both."""
        if self._side is None:
            return first(), second()
        here = torch.cuda.current_stream(self._side.device)
        self._side.wait_stream(here)
        with torch.cuda.stream(self._side):
            beside = second()
        result = first()
        here.wait_stream(self._side)
        return result, beside
