"""Memory traffic of a compiled model, counted as inductor schedules it, without running it."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch._inductor import config as inductor_config
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.exc import InductorError
from torch._inductor.scheduler import BaseSchedulerNode, ExternKernelSchedulerNode, Scheduler
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node

_OWN_TRAFFIC = ("mm", "scaled_dot_product")
"""Names of what is timed by its arithmetic: matrix products and attention."""


@dataclass(slots=True)
class Traffic:
    """Bytes that were counted so far; divide by the tokens of a call."""

    kernels: int = 0
    """Read or written by compiled kernels and by operations that inductor leaves to torch, a buffer
    once a kernel. Matrix products, attention and views are not in it."""
    products: int = 0
    """Read or written by matrix products."""
    num_products: int = 0
    saved: int = 0
    """Of results that are kept for backward or returned."""

    def add(self, node: BaseSchedulerNode) -> None:
        """Count one scheduled kernel."""
        size = node.get_read_write_buffers_sizes()
        if not isinstance(node, ExternKernelSchedulerNode):
            self.kernels += size
        elif "mm" in _kernel_name(node):
            self.products += size
            self.num_products += 1
        elif not _moves_nothing(node):
            self.kernels += size


class _Scheduled(Exception):
    """A graph has been counted, and no code is wanted of it."""


@contextmanager
def counted() -> Iterator[tuple[Traffic, Callable[[Any], Any]]]:
    """What compiled functions move, and what compiles them, for tensors without memory.

    In the block tensors have shapes alone, on a CPU. A compiled function counts its forward and its
    backward when it is called for the first time. The schedule is the one for a CPU: a GPU's fuses
    the same rows. Tensors of more than 1e9 elements are counted as of so many.
    """
    traffic = Traffic()

    def schedule_only(scheduler: Scheduler) -> None:
        for node in scheduler.nodes:
            traffic.add(node)
        raise _Scheduled

    def inner(graph: GraphModule, inputs: Any, **options: Any) -> Any:
        if not options.get("is_backward"):
            traffic.saved += _result_bytes(graph)
        try:
            compile_fx_inner(graph, inputs, **options)
        except (InductorError, _Scheduled) as error:
            if _Scheduled.__name__ not in repr(error):
                raise
        return _boxed(graph)

    def backend(graph: GraphModule, inputs: Any) -> Any:
        return compile_fx(graph, inputs, inner_compile=inner)

    def compiled(function: Any) -> Any:
        return torch.compile(function, fullgraph=True, backend=backend)

    torch.compiler.reset()
    with (
        patch.object(Scheduler, "codegen", schedule_only),
        inductor_config.patch({"cpp.threads": 1}),  # of more, a scatter would not be compiled
        FakeTensorMode(allow_non_fake_inputs=True),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="Torchinductor does not support code generation")
        yield traffic, compiled
    torch.compiler.reset()  # nothing that was only counted is taken for compiled


def _kernel_name(node: ExternKernelSchedulerNode) -> str:
    return str(getattr(node.node, "python_kernel_name", ""))


def _moves_nothing(node: ExternKernelSchedulerNode) -> bool:
    operation = getattr(node.node, "op_overload", None)
    is_view = operation is not None and getattr(operation, "is_view", False)
    return is_view or any(name in _kernel_name(node) for name in _OWN_TRAFFIC)


def _result_bytes(graph: GraphModule) -> int:
    """Of a graph's results, each storage once, those of its inputs left out."""
    (output,) = graph.graph.find_nodes(op="output")
    sizes = _storage_bytes(node for node in output.args[0] if node is not None)
    inputs = _storage_bytes(graph.graph.find_nodes(op="placeholder"))
    return sum(size for storage, size in sizes.items() if storage not in inputs)


def _storage_bytes(nodes: Iterable[Node]) -> dict[int, int]:
    values = (node.meta["val"] for node in nodes)
    storages = (value.untyped_storage() for value in values if isinstance(value, torch.Tensor))
    return {storage._cdata: storage.nbytes() for storage in storages}


def _boxed(graph: GraphModule) -> Callable[[Any], Any]:
    def run(arguments: list[Any]) -> Any:
        return graph(*arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
