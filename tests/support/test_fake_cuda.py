"""The fake device refuses what CUDA would, and warns of waits."""

import pytest
import torch
import triton
import triton.language as tl
from fake_cuda import fake_cuda
from fake_cuda_device import DEVICE


@pytest.fixture
def device():
    with fake_cuda() as device:
        yield device


@triton.jit
def _doubled_kernel(values_ptr, doubled_ptr, count, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    values = tl.load(values_ptr + lanes, mask=lanes < count)
    tl.store(doubled_ptr + lanes, 2.0 * values, mask=lanes < count)


def test_the_device_and_the_host_do_not_mix(device):
    ours, host = torch.zeros(3, device="cuda"), torch.zeros(3)
    for mix in (
        lambda: ours + host,
        lambda: host + ours[0],
        lambda: ours.index_put_((ours.long(),), host),
        lambda: host[ours.long()],
        lambda: torch.cat([ours, host]),
    ):
        with pytest.raises(RuntimeError, match="on the same device"):
            mix()
    assert (ours + torch.tensor(1.0)).device == DEVICE  # a number may come along


WAITS = {
    "item": lambda x: x[0].item(),
    "tolist": lambda x: x.tolist(),
    "index of a list": lambda x: [1, 2, 3][x[0].long()],
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "a host tensor takes a copy": lambda x: torch.zeros(3).copy_(x),
    "nonzero": lambda x: x.nonzero(),
    "number of the device as an index": lambda x: torch.zeros(3)[x[0].long()],
    "boolean index": lambda x: x[x > 0],
    "repeat_interleave": lambda x: x.repeat_interleave(x.long()),
    "synchronize": lambda x: torch.cuda.synchronize(),
    "tensor": lambda x: torch.tensor([1.0], device="cuda"),
    "pageable upload": lambda x: torch.zeros(3).to("cuda"),
    "pinned upload, blocking": lambda x: torch.zeros(3).pin_memory().to("cuda"),
    "copy from the host": lambda x: x.copy_(torch.zeros(3)),
    "part from the host": lambda x: x.__setitem__(slice(1), torch.zeros(1)),
    "index by a host tensor": lambda x: x[torch.tensor([0, 1])],
}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
def test_a_wait_is_a_warning_where_torch_is_asked_for_it(inference):
    with torch.inference_mode(inference):
        for name, wait in WAITS.items():
            values = torch.ones(3, device="cuda")
            torch.cuda.set_sync_debug_mode("warn")
            with pytest.warns(UserWarning, match="synchronizing") as waits:
                wait(values)
            torch.cuda.set_sync_debug_mode("default")
            assert len(waits) == 1, name


def test_kernels_are_refused_what_they_cannot_reach(device):
    ours, host = torch.ones(3, device="cuda"), torch.ones(3)
    with pytest.raises(ValueError, match="_doubled_kernel cannot be accessed"):
        _doubled_kernel[(1,)](ours, host, 3, BLOCK=4)
    with pytest.raises(RuntimeError, match="invalid argument"):
        _doubled_kernel[(1, 65_536)](ours, ours, 3, BLOCK=4)
    with pytest.raises(RuntimeError, match="cannot wait for each other"):
        _doubled_kernel[(2,)](ours, ours, 3, BLOCK=4, launch_cooperative_grid=True)


def test_nothing_of_it_is_left_behind():
    with fake_cuda():
        pass
    assert torch.zeros(1).device.type == "cpu" and not torch.zeros(1).is_cuda
    assert isinstance(torch.Tensor.device, type(torch._C.TensorBase.device))
