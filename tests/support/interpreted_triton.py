"""Triton's interpreter, made to patch its language once a launch, not at every function called."""

from collections.abc import Callable
from functools import cache
from types import FunctionType, ModuleType, SimpleNamespace

import triton.language as tl
from triton.runtime import interpreter

_NOTHING_CHANGED = SimpleNamespace(restore=lambda: None)


def patch_once_a_launch() -> None:
    """Called functions find their launch's patches in place: half of the interpreter's time."""
    patch = interpreter._patch_lang

    def patched(fn: FunctionType) -> object:
        is_in_place = not any(tl.core.is_builtin(module.load) for module in _languages(fn))
        return _NOTHING_CHANGED if is_in_place else patch(fn)

    interpreter._patch_lang = patched


@cache
def _languages(fn: Callable[..., object]) -> list[ModuleType]:
    """The modules of the language that a kernel's file imports."""
    return [value for value in fn.__globals__.values() if value is tl or value is tl.core]
