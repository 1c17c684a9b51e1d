"""Torch's state around a call: the caller's is put aside or refused while this package computes."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any

import torch
from torch._C import _len_torch_function_stack
from torch.overrides import _pop_mode, _push_mode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

PRODUCTS = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
"""Products of float32 that may be rounded to fewer digits (`set_float32_matmul_precision`)."""
EXACT = ("none", "ieee")

_lock, _undo, _num_inside = Lock(), ExitStack(), 0
"""The settings that all threads share, and the number of threads inside: the last to leave brings
the caller's back."""


@contextmanager
def plain_torch() -> Iterator[None]:
    """Torch as a new program has it: what is computed within depends on no setting of the caller.

    With float32 as the default dtype, the CPU as the default device and whole float32 products;
    afterwards all is as it was. Raises ValueError for autocast, which would compute in half of what
    a ledger says, and for modes of functions or dispatch, which may change any result.
    """
    if on := [kind for kind in ("cpu", "cuda", "xpu", "mps") if torch.is_autocast_enabled(kind)]:
        raise ValueError(f"torch.autocast is on for {on[0]}: leave it, a ledger is of whole dtypes")
    with ExitStack() as stack:
        # Those of torch.set_default_device and `with torch.device` change a place, and no result.
        modes = [m for m in _put_modes_aside(stack) if not isinstance(m, DeviceContext)]
        if modes:
            raise ValueError(
                f"leave torch's mode {type(modes[0]).__name__}: it may change any result"
            )
        stack.enter_context(_plain_process())
        if torch.is_inference_mode_enabled():  # `verify` takes slopes, which need other tensors
            stack.enter_context(torch.inference_mode(False))
        yield


def _put_modes_aside(stack: ExitStack) -> list[Any]:
    """The modes of functions, which the end of the stack brings back, and those of dispatch."""
    # Innermost first.
    modes = [_pop_mode() for _ in range(_len_torch_function_stack())]  # type: ignore[no-untyped-call]
    for mode in modes:
        stack.callback(_push_mode, mode)
    return [*modes, *_get_current_dispatch_mode_stack()]


@contextmanager
def _plain_process() -> Iterator[None]:
    """float32 as the default dtype, and its products whole, for as long as a thread is inside."""
    global _num_inside
    with _lock:
        _num_inside += 1
        if (dtype := torch.get_default_dtype()) != torch.float32:
            _undo.callback(torch.set_default_dtype, dtype)
            torch.set_default_dtype(torch.float32)
        for products in PRODUCTS:
            if (precision := products.fp32_precision) not in EXACT:
                _undo.callback(setattr, products, "fp32_precision", precision)
                products.fp32_precision = "ieee"
    try:
        yield
    finally:
        with _lock:
            _num_inside -= 1
            if not _num_inside:
                _undo.close()


in_plain_torch = plain_torch()
"""Decorates a function that computes in plain torch; a generator's steps would not."""
