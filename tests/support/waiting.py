"""Waiting for what comes by itself."""

import time
from collections.abc import Callable

HANG_S = 600
"""Seconds after which what a test waits for never comes. A machine that is at other work takes
minutes to start vLLM, and its disk, while it writes what was installed, to write an account."""


def until(condition: Callable[[], object]) -> None:
    """Return once the condition holds; AssertionError where it never does."""
    end = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)
