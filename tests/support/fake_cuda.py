"""A CUDA device that is not there: tensors say they are on it, and what it would refuse raises.

`with fake_cuda() as device:` gives the process one device, "cuda:0". Tensors are computed on the
CPU; a mark on their storage says that they are on the device, so views, parameters and results of
in-place operations share it. Triton kernels run in the interpreter, one program after another.

- Operations that mix the device with the host raise RuntimeError, as on CUDA.
- Every wait of the host is a warning where `torch.cuda.set_sync_debug_mode` asks for it: a value
  read (item, tolist, bool, cpu), a result whose shape depends on values (nonzero, boolean indices),
  a copy of pageable memory.

It knows nothing of time, of other streams' races and of other numbers than the CPU's. Models are
moved to it: `from_pretrained` inside the block leaves buffers that no file has without values.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from fake_cuda_device import DEVICE, FakeDevice, cuda_names, is_on_device
from fake_cuda_tensors import Methods, Operations
from torch import Tensor
from torch.utils._pytree import tree_leaves
from triton.runtime import interpreter

from anchored.decode import ambient
from anchored.kernels.devices import work_device

MOST_GRID_ROWS = 65_535
"""CUDA's limit of a grid in y and z."""


def _grid_executor(device: FakeDevice) -> type[interpreter.GridExecutor]:
    class Executor(interpreter.GridExecutor):
        """Refuses what CUDA would, then runs the programs in turn."""

        def __call__(self, *args: Any, **kwargs: Any) -> None:
            name = self.fn.__name__
            grid = self.grid(kwargs) if callable(self.grid) else self.grid
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            if not any(map(is_on_device, tensors)):
                return super().__call__(*args, **kwargs)
            if not all(map(is_on_device, tensors)):
                raise ValueError(f"pointer argument of {name} cannot be accessed: it is on the CPU")
            if max((1, *grid[1:])) > MOST_GRID_ROWS or min(grid) < 1:
                raise RuntimeError(f"Triton Error [CUDA]: invalid argument: grid {grid} of {name}")
            if kwargs.get("launch_cooperative_grid") and grid[0] > 1:
                raise RuntimeError(f"{name}: programs that run in turn cannot wait for each other")
            with device.passive():
                super().__call__(*args, **kwargs)

    return Executor


@contextmanager
def fake_cuda(num_processors: int = 132, *, has_float64: bool = True) -> Iterator[FakeDevice]:
    """One device for the block; tensors that say they are on it are not to be used behind it.

    num_processors: with one, kernels share no row among programs, which takes the least time.
    has_float64: without, the device refuses such tensors, as Apple's GPUs do.
    """
    device = FakeDevice(num_processors, has_float64=has_float64)
    attributes = {
        "device": lambda t: DEVICE if is_on_device(t) else torch._C.TensorBase.device.__get__(t),
        "is_cuda": is_on_device,
        "is_cpu": lambda t: not is_on_device(t) and torch._C.TensorBase.is_cpu.__get__(t),
    }
    work_device.cache_clear()
    with ExitStack() as stack:
        stack.callback(work_device.cache_clear)
        for name, value in cuda_names(device).items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        for name, getter in attributes.items():
            stack.enter_context(patch.object(Tensor, name, property(getter), create=True))
        stack.enter_context(patch.object(interpreter, "GridExecutor", _grid_executor(device)))
        # The device is made of modes itself.
        stack.enter_context(patch.object(ambient, "_put_modes_aside", return_value=[]))
        stack.enter_context(Methods(device))
        stack.enter_context(Operations(device))
        yield device
