"""Torch's state around a call: the caller's is put aside while this package computes."""

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial, wraps
from threading import Lock
from typing import Any, ParamSpec, TypeVar

import torch
from torch._C import _len_torch_function_stack
from torch.overrides import _pop_mode, _push_mode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps")
"""Devices where `torch.autocast` may be on; it would compute in half of what a ledger says."""

PRODUCTS = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
"""Products of float32 that may be rounded to fewer digits (`set_float32_matmul_precision`)."""
EXACT = ("none", "ieee")


@contextmanager
def plain_torch() -> Iterator[None]:
    """Torch as a new program has it: what is computed within depends on no setting of the caller.

    Without autocast, with float32 as the default dtype, the CPU as the default device and whole
    float32 products, and without modes of functions or dispatch, which may change any result.
    Afterwards all is as it was.
    """
    with ExitStack() as stack:
        stack.enter_context(_process.plain())
        if torch.is_inference_mode_enabled():  # `verify` takes slopes, which need other tensors
            stack.enter_context(torch.inference_mode(False))
        for device in AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device):
                torch.set_autocast_enabled(device, False)
                stack.callback(torch.set_autocast_enabled, device, True)
        modes = _put_modes_aside(stack)
        # Those of torch.set_default_device and `with torch.device` change a place, and see nothing.
        if unseen := {type(mode).__name__ for mode in modes if not isinstance(mode, DeviceContext)}:
            _say_unseen(", ".join(sorted(name.lstrip("_") for name in unseen)))
        yield


def in_plain_torch(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function in `plain_torch`, and if it returns a generator, every step of that.

    Between the steps of a generator, where the caller's code runs, the state is the caller's.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with plain_torch():
            result = function(*args, **kwargs)
        return _steps(result) if isinstance(result, Generator) else result  # type: ignore[return-value]

    return call


def _steps(steps: Generator[Any, None, None]) -> Iterator[Any]:
    try:
        while True:
            with plain_torch():
                try:
                    step = next(steps)
                except StopIteration:
                    return
            yield step
    finally:
        steps.close()


def _put_modes_aside(stack: ExitStack) -> list[Any]:
    """The modes of functions and of dispatch, which the end of the stack brings back."""
    # Innermost first.
    modes = [_pop_mode() for _ in range(_len_torch_function_stack())]  # type: ignore[no-untyped-call]
    for mode in modes:
        stack.callback(_push_mode, mode)
    return [*modes, *stack.enter_context(_disable_current_modes())]


@cache
def _say_unseen(names: str) -> None:
    """Warn once for each kind: counters and traces of operations see none here."""
    logger.warning("%s sees nothing of what is computed here: torch's modes are put aside", names)


class _ProcessWide:
    """Settings that all threads share: the last thread to leave brings the caller's back."""

    def __init__(self) -> None:
        self._lock, self._inside = Lock(), 0
        self._undo: dict[object, Callable[[], None]] = {}

    @contextmanager
    def plain(self) -> Iterator[None]:
        with self._lock:
            self._inside += 1
            self._put_aside()
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    for undo in self._undo.values():
                        undo()
                    self._undo.clear()

    def _put_aside(self) -> None:
        if (dtype := torch.get_default_dtype()) != torch.float32:
            self._undo["dtype"] = partial(torch.set_default_dtype, dtype)
            torch.set_default_dtype(torch.float32)
        for products in PRODUCTS:
            if (precision := products.fp32_precision) not in EXACT:
                self._undo[products] = partial(setattr, products, "fp32_precision", precision)
                products.fp32_precision = "ieee"


_process = _ProcessWide()
