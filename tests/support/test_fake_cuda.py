"""What the fake device refuses, what it counts, and what a replay of it does."""

import copy
import gc

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from fake_cuda import fake_cuda
from fake_cuda_graph import KEPT_BY_NOBODY
from fake_cuda_runtime import DEVICE
from torch import nn


@pytest.fixture
def device():
    with fake_cuda() as device:
        yield device


@triton.jit
def _doubled_kernel(values_ptr, doubled_ptr, count, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    values = tl.load(values_ptr + lanes, mask=lanes < count)
    tl.store(doubled_ptr + lanes, 2.0 * values, mask=lanes < count)


def test_tensors_are_where_they_were_made(device):
    values = torch.zeros(4, device="cuda")
    views = [values, values[1:], values + 1, values.double(), nn.Parameter(values), values.data]
    views += [copy.deepcopy(values), torch.empty_like(values), values.new_ones(2), values.clone()]
    views += [torch.zeros(2).to("cuda"), torch.zeros(2).cuda(), torch.tensor([1], device="cuda")]
    assert {view.device for view in views} == {DEVICE}
    assert all(view.is_cuda and not view.is_cpu for view in views)
    layer = nn.Linear(2, 2).to("cuda")
    assert type(layer.weight) is nn.Parameter and layer.weight.device == DEVICE
    with torch.device("cuda"):
        assert torch.arange(3).device == DEVICE
    host = [values.cpu(), values.to("cpu"), torch.zeros(4).copy_(values), torch.zeros(1)]
    assert {view.device.type for view in host} == {"cpu"}
    assert copy.deepcopy(layer).weight.device == DEVICE


MIXED = {
    "operands": lambda ours, host: ours + host,
    "a host tensor beside a number of the device": lambda ours, host: host + ours[0],
    "written values": lambda ours, host: ours.index_put_((ours.long(),), host),
    "indices of a host tensor": lambda ours, host: host[ours.long()],
    "tensors in a list": lambda ours, host: torch.cat([ours, host]),
}


@pytest.mark.parametrize("mix", MIXED.values(), ids=MIXED)
def test_the_device_and_the_host_do_not_mix(device, mix):
    ours, host = torch.zeros(3, device="cuda"), torch.zeros(3)
    with pytest.raises(RuntimeError, match="on the same device"):
        mix(ours, host)
    assert (ours + torch.tensor(1.0)).device == DEVICE  # a number may come along


def test_an_array_is_not_made_of_memory_of_the_device(device):
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        torch.zeros(3, device="cuda").numpy()
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        np.asarray(torch.zeros(3, device="cuda"))


WAITS = {
    "item": lambda x: x[0].item(),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: bool(x[0]),
    "int": lambda x: int(x[0]),
    "float": lambda x: float(x[0]),
    "index of a list": lambda x: [1, 2, 3][x[0].long()],
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "to, not blocking": lambda x: x.to("cpu", non_blocking=True),
    "numpy by force": lambda x: x.numpy(force=True),
    "a host tensor takes a copy": lambda x: torch.zeros(3).copy_(x),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "masked_select": lambda x: x.masked_select(x > 0),
    "number of the device as an index": lambda x: torch.zeros(3)[x[0].long()],
    "boolean index": lambda x: x[x > 0],
    "boolean index written to": lambda x: x.__setitem__(x > 0, 1.0),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: x.long().bincount(),
    "equal": lambda x: torch.equal(x, x + 1),
    "allclose": lambda x: torch.allclose(x, x),
    "repeat_interleave": lambda x: x.repeat_interleave(x.long()),
    "synchronize": lambda x: torch.cuda.synchronize(),
    "tensor": lambda x: torch.tensor([1.0], device="cuda"),
    "new_tensor": lambda x: x.new_tensor([1.0]),
    "pageable upload": lambda x: torch.zeros(3).to("cuda"),
    "pageable upload, not blocking": lambda x: torch.zeros(3).to("cuda", non_blocking=True),
    "pinned upload, blocking": lambda x: torch.zeros(3).pin_memory().to("cuda"),
    "copy from the host": lambda x: x.copy_(torch.zeros(3)),
    "part from the host": lambda x: x.__setitem__(slice(1), torch.zeros(1)),
    "index by a list": lambda x: x[[0, 1]],
    "index by a host tensor": lambda x: x[torch.tensor([0, 1])],
}


@pytest.mark.parametrize("inference", [False, True], ids=["", "inference"])
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_wait_is_counted_and_refused_in_a_capture(device, wait, inference):
    with torch.inference_mode(inference):
        _assert_waits(device, wait)


def _assert_waits(device, wait):
    values = torch.ones(3, device="cuda")
    with device.counted() as waits:
        wait(values)
    assert waits.total() == 1
    with (
        pytest.raises(RuntimeError, match="not permitted when stream is capturing"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        wait(values)
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
        wait(values)


FREE = {
    "a number written": lambda x: x.__setitem__(0, 2.0),
    "a number filled in": lambda x: x.fill_(3.0),
    "indices of the device": lambda x: x[torch.arange(2, device="cuda")],
    "a condition": lambda x: torch.where(x > 0, x, 0.0),
    "shapes": lambda x: (len(x), x.shape, x.stride(), x.dtype, x.numel()),
    "a cast": lambda x: x.to(torch.float64).to("cuda"),
}


@pytest.mark.parametrize("work", FREE.values(), ids=FREE)
def test_other_work_waits_for_nothing(device, work):
    values = torch.ones(3, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        work(values)
    assert device.num_waits == 0


def test_pinned_memory_is_sent_without_a_wait_but_not_in_a_capture(device):
    pinned = torch.ones(3).pin_memory()
    assert pinned.is_pinned() and pinned.to("cuda", non_blocking=True).device == DEVICE
    assert device.num_waits == 0
    with (
        pytest.raises(RuntimeError, match="not permitted when stream is capturing"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        pinned.to("cuda", non_blocking=True)


def test_a_replay_does_everything_again_in_place(device):
    values, other = torch.ones(3, device="cuda"), torch.arange(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sums = (values + other)[1:] * 2.0
        doubled = torch.empty(3, device="cuda")
        _doubled_kernel[(1,)](values, doubled, 3, BLOCK=4)
        highest, _ = doubled.max(0)
        values.add_(1.0)
    values.fill_(5.0)
    graph.replay()
    graph.replay()
    assert values.tolist() == [7.0] * 3 and sums.tolist() == [14.0, 16.0]
    assert doubled.tolist() == [12.0] * 3 and highest.item() == 12.0
    assert device.launches["_doubled_kernel"] == 3


def test_a_replay_needs_the_memory_that_others_own_and_keeps_its_own(device):
    values, other = torch.ones(3, device="cuda"), torch.ones(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values.add_((values * 2.0)[:1])  # the product is the graph's
        values.add_(other)
    gc.collect()
    graph.replay()
    del other
    with pytest.raises(RuntimeError, match=KEPT_BY_NOBODY):
        graph.replay()


def test_kernels_are_refused_what_they_cannot_reach(device):
    ours, host = torch.ones(3, device="cuda"), torch.ones(3)
    with pytest.raises(ValueError, match="_doubled_kernel cannot be accessed"):
        _doubled_kernel[(1,)](ours, host, 3, BLOCK=4)
    with pytest.raises(RuntimeError, match="invalid argument"):
        _doubled_kernel[(1, 65_536)](ours, ours, 3, BLOCK=4)
    with pytest.raises(RuntimeError, match="cannot wait for each other"):
        _doubled_kernel[(2,)](ours, ours, 3, BLOCK=4, launch_cooperative_grid=True)


def test_branches_of_a_capture_begin_in_it_and_are_joined(device):
    values = torch.ones(3, device="cuda")
    side = torch.cuda.Stream()
    with (
        pytest.raises(RuntimeError, match="does not wait for"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
        torch.cuda.stream(side),
    ):
        values.add_(1.0)
    for is_joined in (True, False):
        with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
            here = torch.cuda.current_stream()
            side.wait_stream(here)
            with torch.cuda.stream(side):
                values.add_(1.0)
            if is_joined:
                here.wait_stream(side)
            else:
                with pytest.raises(RuntimeError, match="not joined"):
                    graph.end()
                here.wait_stream(side)


def test_nothing_of_it_is_left_behind():
    with fake_cuda():
        pass
    assert torch.zeros(1).device.type == "cpu" and not torch.zeros(1).is_cuda
    assert isinstance(torch.Tensor.device, type(torch._C.TensorBase.device))
