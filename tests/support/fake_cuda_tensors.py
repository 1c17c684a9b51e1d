"""Operations of torch on tensors of a CUDA device that is not there, and its refusals."""

from collections.abc import Callable
from typing import Any

import torch
from fake_cuda_device import FakeDevice, here, is_cuda, is_on_device, to_device
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
READS = {aten._local_scalar_dense, aten.item, aten.is_nonzero}
DEPENDENT_SHAPES = {
    aten.nonzero,
    aten.masked_select,
    aten.equal,
    aten.allclose,
    aten.bincount,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.repeat_interleave,
}
"""Operations for which torch waits: the host needs their result, or its size."""
COPIES = {aten.copy_, aten._to_copy}
INDEXED = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}


# What torch does below Python.


class Operations(TorchDispatchMode):
    """Sees every operation, whoever calls it."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if self.device.is_passive:
            return func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        ours = [tensor for tensor in tensors if is_on_device(tensor)]
        target = kwargs.get("device")
        if is_cuda(target):
            kwargs["device"] = torch.device("cpu")
        if not ours and not is_cuda(target):
            return func(*args, **kwargs)
        goes_away = func.overloadpacket is aten._to_copy and target and not is_cuda(target)
        self._check(func, args, tensors, len(ours), target)
        result = func(*args, **kwargs)
        if not goes_away:
            # What is written to host memory stays there.
            self._keep(func, args, result)
        return result

    def _check(self, func: Any, args: Any, tensors: list[Any], num_ours: int, target: Any) -> None:
        packet = func.overloadpacket
        if packet in READS:
            self.device.wait("item")
        if packet in DEPENDENT_SHAPES or func is aten.where.default:
            self.device.wait(str(packet))
        if packet in COPIES:
            self._check_copy(packet, args, target)
        elif packet in INDEXED:
            self._check_index(packet, args)
        elif num_ours and any(t.dim() > 0 and not is_on_device(t) for t in tensors):
            raise RuntimeError(_mixed(packet, tensors))

    def _check_copy(self, packet: Any, args: Any, target: Any) -> None:
        if packet is aten._to_copy:
            from_device, to = is_on_device(args[0]), target and is_cuda(target)
            if target is not None and from_device != bool(to):
                self.device.wait("a copy from the device" if from_device else "an upload")
            return
        to_ours, from_ours = map(is_on_device, args[:2])
        if to_ours != from_ours:
            self.device.wait("an upload" if to_ours else "a copy from the device")

    def _check_index(self, packet: Any, args: Any) -> None:
        values, indices = args[0], [index for index in args[1] if index is not None]
        if not is_on_device(values) or any(t.dim() and not is_on_device(t) for t in args[2:3]):
            raise RuntimeError(_mixed(packet, [values, *indices, *args[2:3]]))
        for index in indices:
            if index.dtype in (torch.bool, torch.uint8):
                self.device.wait("a boolean index")
            if not is_on_device(index):
                self.device.wait("an upload of indices")

    def _keep(self, func: Any, args: Any, result: Any) -> None:
        if func.overloadpacket is aten.copy_ and not is_on_device(args[0]):
            return
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and not is_on_device(leaf):
                to_device(self.device.check(leaf))


def _mixed(packet: Any, tensors: list[Tensor]) -> str:
    places = ", ".join(f"{tuple(t.shape)} on {t.device}" for t in tensors)
    return f"{packet}: expected all tensors on the same device, got {places} {here()}"


# What torch does in Python, and in C++ above its operations, where it asks for the device.


class Methods(TorchFunctionMode):
    """Methods and functions that would take the short way of the CPU."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self.device = device
        self._replacements: dict[Callable[..., Any], Callable[..., Any]] = {
            Tensor.to: self._to,
            Tensor.cpu: lambda tensor, *_, **__: self._to(tensor, "cpu"),
            Tensor.tolist: self._read_list,
            Tensor.numpy: self._numpy,
            Tensor.__array__: self._array,
            Tensor.pin_memory: self._pinned,
            Tensor.new_tensor: lambda tensor, data, **kw: self._tensor(
                data, **{"dtype": tensor.dtype, "device": tensor.device, **kw}
            ),
            Tensor.__deepcopy__: self._deepcopy,
            Tensor.__setitem__: self._setitem,
            torch.tensor: self._tensor,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        replacement = None if self.device.is_passive else self._replacements.get(func)
        return (replacement or func)(*args, **(kwargs or {}))

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        copies = kwargs.pop("copy", False)
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        target, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        same = {"copy": copies}
        if memory_format is not None:
            same["memory_format"] = memory_format
        cast = tensor.to(dtype or tensor.dtype, **same)
        if target is None or is_cuda(target) == is_on_device(tensor):
            return cast
        is_sent = non_blocking and is_cuda(target) and _is_pinned(tensor)
        if not is_sent:
            self.device.wait("an upload" if is_cuda(target) else "a copy from the device")
        with self.device.passive():
            moved = cast.clone() if cast is tensor or is_on_device(cast) else cast
            if moved.untyped_storage() is tensor.untyped_storage():
                moved = moved.clone()
        return to_device(self.device.check(moved)) if is_cuda(target) else moved

    def _read_list(self, tensor: Tensor) -> Any:
        if is_on_device(tensor):
            self.device.wait("tolist")
        with self.device.passive():
            return tensor.tolist()

    def _numpy(self, tensor: Tensor, *, force: bool = False) -> Any:
        if force or not is_on_device(tensor):
            return self._to(tensor, "cpu").numpy(force=force)
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def _array(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        return self._numpy(tensor) if is_on_device(tensor) else tensor.__array__(*args, **kwargs)

    def _pinned(self, tensor: Tensor, *_: Any) -> Tensor:
        if is_on_device(tensor):
            raise RuntimeError("cannot pin memory of cuda:0, only of the CPU")
        with self.device.passive():
            pinned = tensor.clone(memory_format=torch.contiguous_format)
        pinned.untyped_storage().is_fake_pinned = True
        return pinned

    def _tensor(self, data: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
        made = torch.tensor(data, **kwargs)
        if not is_cuda(device):
            return made
        self.device.wait("an upload")
        return to_device(self.device.check(made))

    def _setitem(self, tensor: Tensor, index: Any, value: Any) -> None:
        # CUDA is told a number with the kernel that writes it.
        is_number = not isinstance(value, Tensor) or (value.dim() == 0 and not is_on_device(value))
        if is_number and is_on_device(tensor):
            with self.device.passive():
                value = to_device(torch.as_tensor(value, dtype=tensor.dtype).clone())
        tensor[index] = value

    def _deepcopy(self, tensor: Tensor, memo: dict[int, Any]) -> Tensor:
        if not is_on_device(tensor):
            return tensor.__deepcopy__(memo)
        return memo.setdefault(id(tensor), tensor.detach().clone())


def _is_pinned(tensor: Tensor) -> bool:
    return getattr(tensor.untyped_storage(), "is_fake_pinned", False)
