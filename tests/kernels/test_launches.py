"""How kernels are launched: on the device of their tensors, with grids that no batch outgrows."""

from contextlib import contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode

from anchored.kernels.gpu import launch, projection_kernel
from anchored.kernels.projection import project_kl

SECOND = torch.device("cuda:1")


class OnSecond(torch.Tensor):
    """A CPU tensor that says it is on the second device."""

    device, is_cuda = SECOND, True


class SecondDevice(TorchFunctionMode):
    """Makes what is made there on the CPU, and say that it is there."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        cpu = torch.device("cpu")
        args = [cpu if isinstance(each, torch.device) else each for each in args]
        kwargs = {k: cpu if k == "device" else v for k, v in (kwargs or {}).items()}
        result = function(*args, **kwargs)
        return result.as_subclass(OnSecond) if isinstance(result, torch.Tensor) else result


class Recorder:
    """A kernel that notes the grid and the current device of each launch."""

    def __init__(self):
        self.launches, self.current = [], torch.device("cuda:0")

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.launches.append((grid, self.current))

    @contextmanager
    def device(self, device):
        before, self.current = self.current, device
        yield
        self.current = before


@pytest.fixture
def recorder(monkeypatch):
    """In place of the kernel, on a machine with two devices of 132 multiprocessors."""
    found = Recorder()
    monkeypatch.setattr(torch.cuda, "device", found.device)
    monkeypatch.setattr(launch, "is_interpreted", lambda: False)
    monkeypatch.setattr(
        launch, "resident_splits", lambda rows, size, device: launch.splits_of(rows, size, 132)
    )
    monkeypatch.setattr(projection_kernel, "projection_kernel", found)
    with SecondDevice():
        yield found


def ones(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype, device=SECOND)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_kernels_run_where_their_tensors_are(num_rows, recorder):
    project_kl(ones(num_rows, 40), ones(num_rows, 40), ones(num_rows), backend="triton")
    ((_, device),) = recorder.launches
    assert device == SECOND
