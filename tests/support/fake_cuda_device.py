"""The CUDA device that is not there: which tensors are on it, and what happened there."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import anchored

ROOT = Path(anchored.__file__).parent
DEVICE = torch.device("cuda:0")


class FakeDevice:
    """The device, and whether torch was asked to warn when the host waits for it."""

    def __init__(self, num_processors: int, *, has_float64: bool = True) -> None:
        self.has_float64 = has_float64
        self.properties = SimpleNamespace(multi_processor_count=num_processors)
        self.sync_debug_mode = "default"
        self.is_passive = False
        """Set while the fake itself, or an interpreted kernel, computes."""

    def wait(self, what: str) -> None:
        """The host waits for the device."""
        if self.sync_debug_mode == "warn":
            warnings.warn(f"called a synchronizing CUDA operation: {what} {here()}", stacklevel=3)

    def check(self, tensor: Tensor) -> Tensor:
        """Refuse a tensor that the device cannot hold, in the words of Apple's GPUs."""
        if tensor.dtype == torch.float64 and not self.has_float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework ...")
        return tensor

    @contextmanager
    def passive(self) -> Iterator[None]:
        was_passive, self.is_passive = self.is_passive, True
        try:
            yield
        finally:
            self.is_passive = was_passive


def here() -> str:
    """file:line of the innermost frames of the package."""
    frame, places = sys._getframe(1), list[str]()
    while frame is not None and len(places) < 3:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and not path.is_relative_to(ROOT / "tests"):
            places.append(f"{path.relative_to(ROOT)}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(places)


def is_on_device(tensor: Tensor) -> bool:
    try:
        return getattr(tensor.untyped_storage(), "is_on_fake_cuda", False)
    except NotImplementedError:  # layouts of the CPU's own libraries
        return False


def to_device(tensor: Tensor) -> Tensor:
    """The same tensor, from now on one of the device."""
    tensor.untyped_storage().is_on_fake_cuda = True
    return tensor


def is_cuda(device: object) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def cuda_names(device: FakeDevice) -> dict[str, Any]:
    """Replacements of names of `torch.cuda`."""
    return {
        "_lazy_init": lambda: None,
        "_exchange_device": lambda index: 0,
        "_maybe_exchange_device": lambda index: 0,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "get_device_properties": lambda *_: device.properties,
        "synchronize": lambda *_: device.wait("synchronize"),
        "set_sync_debug_mode": lambda mode: setattr(device, "sync_debug_mode", mode),
        "is_current_stream_capturing": lambda: False,
    }
