"""A CUDA graph of the device that is not there: what was captured, and the memory that it reads."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

KEPT_BY_NOBODY = "a replay touches memory that was freed after the capture"


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor by its address; its storage is kept only if it is the graph's own or the host's."""

    storage: Callable[[], Any]
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def tensor(self) -> Tensor:
        storage = self.storage()
        if storage is None:
            raise RuntimeError(f"{KEPT_BY_NOBODY}: {tuple(self.size)} {self.dtype}")
        empty = torch.empty(0, dtype=self.dtype)
        return empty.set_(storage, self.offset, self.size, self.stride)


class Graph:
    """Runs what was captured again, in order and on the same memory.

    Memory taken inside the capture is the graph's own. Of all other memory it has the address only,
    as a CUDA graph has.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._work: list[Callable[[], None]] = []
        self._own: dict[int, Any] = {}
        self._streams: list[Any] = []
        """Those that the capture has reached, its own first."""
        self._apart: list[Any] = []
        """Those with work that nothing of the capture's own stream waits for."""

    def begin(self, stream: Any) -> None:
        """Capture what this stream is given, and those that wait for it."""
        self._streams = [stream]

    def join(self, stream: Any, other: Any) -> None:
        """A stream waits for another one."""
        if other in self._streams and stream not in self._streams:
            self._streams.append(stream)
        if stream is self._streams[0] and other in self._apart:
            self._apart.remove(other)

    def work_on(self, stream: Any) -> None:
        """RuntimeError for work on a stream that the capture has not reached."""
        if stream not in self._streams:
            raise RuntimeError("work on a stream that does not wait for the one that is captured")
        if stream is not self._streams[0] and stream not in self._apart:
            self._apart.append(stream)

    def end(self) -> None:
        """RuntimeError where a branch was never joined."""
        if self._apart:
            raise RuntimeError("capture_end: work on another stream was not joined")

    def add(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """An operation that has just run; its results have been marked."""
        given = {id(_storage(leaf)) for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)}
        results = [leaf for leaf in tree_leaves(result) if _is_tensor(leaf)]
        taken = [leaf for leaf in results if id(_storage(leaf)) not in given]
        for leaf in taken:
            self._own[id(_storage(leaf))] = _storage(leaf)
        if not taken and not func._schema.is_mutable:
            return  # a view: its memory is looked at by those that read it
        places = tree_map(self._place, (args, kwargs))
        targets = [self._place(leaf) for leaf in taken]

        def again() -> None:
            given, named = tree_map(_tensor_at, places, is_leaf=_is_place)
            found = [leaf for leaf in tree_leaves(func(*given, **named)) if _is_tensor(leaf)]
            fresh = found if len(found) == len(targets) else found[len(found) - len(targets) :]
            for target, leaf in zip(targets, fresh, strict=True):
                target.tensor().copy_(leaf)

        self._work.append(again)

    def add_launch(self, launch: Callable[..., None], args: Any, kwargs: Any) -> None:
        """A kernel that has just run."""
        places = tree_map(self._place, (args, kwargs))

        def again() -> None:
            given, named = tree_map(_tensor_at, places, is_leaf=_is_place)
            launch(*given, **named)

        self._work.append(again)

    def replay(self) -> None:
        """Everything again; RuntimeError if memory was freed that the graph does not own."""
        with self._device.passive():
            for work in self._work:
                work()

    def _place(self, leaf: Any) -> Any:
        if not _is_tensor(leaf):
            return leaf
        storage = _storage(leaf)
        is_own = id(storage) in self._own or not getattr(storage, "is_on_fake_cuda", False)
        return Place(
            (lambda: storage) if is_own else weakref.ref(storage),
            leaf.dtype,
            leaf.size(),
            leaf.stride(),
            leaf.storage_offset(),
        )


def _storage(tensor: Tensor) -> Any:
    return tensor.untyped_storage()


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor)


def _is_place(leaf: Any) -> bool:
    return isinstance(leaf, Place)


def _tensor_at(leaf: Any) -> Any:
    return leaf.tensor() if isinstance(leaf, Place) else leaf
