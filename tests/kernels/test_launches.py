"""How kernels are launched: on the device of their tensors, with grids that no batch outgrows."""

from contextlib import contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode

from anchored.kernels.gpu import launch, walk_kernel
from anchored.kernels.projection import project_kl
from anchored.kernels.spend import NUM_FIELDS
from anchored.kernels.walk import walk

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
    monkeypatch.setattr(walk_kernel, "walk_kernel", found)
    with SecondDevice():
        yield found


def ones(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype, device=SECOND)


def projected(num_rows):
    project_kl(ones(num_rows, 40), ones(num_rows, 40), ones(num_rows), backend="triton")


def walked(num_rows):
    accounts = ones(num_rows, NUM_FIELDS, dtype=torch.float64)
    logits, long = ones(num_rows, 2, 40), torch.int64
    walk(
        *(logits, logits),
        accounts=accounts,
        seeds=ones(num_rows, dtype=long),
        drafts=ones(num_rows, 1, dtype=long),
        backend="triton",
    )


USES = [projected, walked]


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("use", USES)
def test_kernels_run_where_their_tensors_are(use, num_rows, recorder):
    use(num_rows)
    assert recorder.launches
    assert {device for _, device in recorder.launches} == {SECOND}
