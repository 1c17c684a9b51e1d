"""The CUDA device that is not there: which tensors are on it, and what happened there."""

import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fake_cuda_graph import Graph
from fake_cuda_runtime import TOTAL_MEMORY, Stream
from torch import Tensor

import anchored

ROOT = Path(anchored.__file__).parent


class FakeDevice:
    """What happened on the device."""

    def __init__(self, num_processors: int) -> None:
        self.properties = SimpleNamespace(
            name="NVIDIA H200 (fake)",
            multi_processor_count=num_processors,
            total_memory=TOTAL_MEMORY,
            major=9,
            minor=0,
        )
        self.waits: Counter[str] = Counter()
        """By what was asked and where: file:line of the innermost frames of the package."""
        self.launches: Counter[str] = Counter()
        """Triton kernels by name, replays included."""
        self.operations: Counter[str] = Counter()
        """Operations of torch on the device, views and replays left out."""
        self.capture: Graph | None = None
        self.stream = Stream(self)
        """The one that work is given to."""
        self.sync_debug_mode = "default"
        self.is_passive = False
        """Set while the fake itself, or an interpreted kernel, computes."""

    @property
    def num_bytes(self) -> int:
        """Of all memory that lives."""
        return sum(storage.nbytes() for storage in set(_storages))

    @property
    def num_waits(self) -> int:
        return self.waits.total()

    def wait(self, what: str) -> None:
        """The host waits for the device; RuntimeError while a graph is captured."""
        if self.capture is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what} {here()}")
        self.waits[f"{what} {here()}"] += 1
        if self.sync_debug_mode == "warn":
            warnings.warn(f"called a synchronizing CUDA operation: {what}", stacklevel=3)
        if self.sync_debug_mode == "error":
            raise RuntimeError(f"called a synchronizing CUDA operation: {what} {here()}")

    def as_kernel(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """A definition in torch in place of a kernel that the interpreter takes long for."""

        def computed(*args: Tensor) -> Tensor:
            self.launches[function.__name__] += 1
            assert all(map(is_on_device, args))
            with self.passive():
                return to_device(function(*(values.clone() for values in args)))

        return computed

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


_storages: weakref.WeakSet[Any] = weakref.WeakSet()
"""Memory of the device."""


def is_on_device(tensor: Tensor) -> bool:
    try:
        return getattr(tensor.untyped_storage(), "is_on_fake_cuda", False)
    except NotImplementedError:  # layouts of the CPU's own libraries
        return False


def to_device(tensor: Tensor) -> Tensor:
    """The same tensor, from now on one of the device."""
    storage = tensor.untyped_storage()
    storage.is_on_fake_cuda = True
    _storages.add(storage)
    return tensor


def is_cuda(device: object) -> bool:
    return device is not None and torch.device(device).type == "cuda"
