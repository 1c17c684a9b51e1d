"""The CUDA device that is not there: which tensors are on it, and what happened there."""

import sys
import warnings
from collections import Counter
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
TOTAL_MEMORY = 141 << 30


class FakeDevice:
    """Waits and launches of the device."""

    def __init__(self, num_processors: int) -> None:
        self.properties = SimpleNamespace(
            name="NVIDIA H200 (fake)",
            multi_processor_count=num_processors,
            total_memory=TOTAL_MEMORY,
            major=9,
            minor=0,
        )
        self.waits: Counter[str] = Counter()
        """Counts by what was asked and where: file:line of the innermost frames of the package."""
        self.launches: Counter[str] = Counter()
        """Triton kernels by name."""
        self.sync_debug_mode = "default"
        self.is_passive = False
        """Set while the fake itself, or an interpreted kernel, computes."""

    def wait(self, what: str) -> None:
        """The host waits for the device."""
        self.waits[f"{what} {here()}"] += 1
        if self.sync_debug_mode == "warn":
            warnings.warn(f"called a synchronizing CUDA operation: {what}", stacklevel=3)

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """The waits of a block, full once it has ended."""
        before, waits = self.waits.copy(), Counter[str]()
        yield waits
        waits.update(self.waits - before)

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
    properties = device.properties
    return {
        "_lazy_init": lambda: None,
        "_exchange_device": lambda index: 0,
        "_maybe_exchange_device": lambda index: 0,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda index: None,
        "get_device_properties": lambda *_: properties,
        "get_device_name": lambda *_: properties.name,
        "get_device_capability": lambda *_: (properties.major, properties.minor),
        "mem_get_info": lambda *_: (TOTAL_MEMORY - (1 << 30), TOTAL_MEMORY),
        "empty_cache": lambda: None,
        "synchronize": lambda *_: device.wait("synchronize"),
        "set_sync_debug_mode": lambda mode: setattr(device, "sync_debug_mode", mode),
        "is_current_stream_capturing": lambda: False,
    }
