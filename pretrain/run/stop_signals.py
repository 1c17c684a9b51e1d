"""Ctrl-C and SIGTERM: before training they end a run at once, in it after the step."""

import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

INTERRUPTED_STATUS = 130
"""128 + SIGINT, as shells have it."""
SAME_PRESS_S = 1.0
"""torchrun passes on what its processes have from the terminal too, and `launch` ends what it
began: a signal within this time is no second press."""


def end_on_interrupt() -> None:
    """End this process at once on Ctrl-C, with one line, until a `StopRequest` is watched for.

    KeyboardInterrupt would be raised in the midst of an import, some of which swallow it.
    """
    # The others have nothing to say, and may wait where no Python runs.
    _handle(signal.SIGINT, (lambda *_: _end("interrupted")) if _is_first() else signal.SIG_DFL)


class StopRequest:
    """Remembers the first SIGINT or SIGTERM.

    A SIGINT after it ends the process at once, and so does any signal after a SIGINT: torchrun
    sends SIGTERM for a second Ctrl-C.
    """

    def __init__(self) -> None:
        self.is_made = False
        self._time = 0.0
        self._was_interrupt = False

    def watch(self) -> None:
        """Remember signals from here on."""
        _handle(signal.SIGTERM, self._receive)
        _handle(signal.SIGINT, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        is_interrupt, now = number == signal.SIGINT, time.monotonic()
        if not self.is_made:
            self.is_made, self._time, self._was_interrupt = True, now, is_interrupt
            _say("stopping after this step, with a checkpoint (Ctrl-C again to stop at once)")
        elif (is_interrupt or self._was_interrupt) and now - self._time > SAME_PRESS_S:
            _end("stopped at once; the same command goes on from the last checkpoint")


def _handle(
    number: signal.Signals, handler: Callable[[int, FrameType | None], None] | signal.Handlers
) -> None:
    if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and shells' scripts have it
        signal.signal(number, handler)


def _end(message: str) -> None:
    _say(message)
    os._exit(INTERRUPTED_STATUS)


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _say(message: str) -> None:
    """Write a line of the first process; not by print, which a signal may have interrupted."""
    if _is_first():
        start = "\n" if sys.stderr is not None and sys.stderr.isatty() else ""  # after a bar
        os.write(2, f"{start}anchored.pretrain: {message}\n".encode())
