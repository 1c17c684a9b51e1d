"""Ctrl-C while modules are imported.

Libraries catch what is raised during their imports and go on without a part, try the import again
or abort. So a SIGINT waits until no import is going on, then becomes a KeyboardInterrupt.
"""

import os
import signal
import threading
from types import FrameType

_RETRY_SECONDS = 0.05
"""Time between attempts to raise it: a person does not notice the delay."""


def defer_during_imports() -> None:
    """Handle SIGINT so, unless the process has another handler or ignores it, as after nohup."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if not _is_swallowed(frame):
        raise KeyboardInterrupt
    again = threading.Timer(_RETRY_SECONDS, os.kill, (os.getpid(), number))
    again.daemon = True  # the process may end without it
    again.start()


def _is_swallowed(frame: FrameType | None) -> bool:
    """Whether an exception would reach an import or a destructor, from which Python raises none."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib") or code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


defer_during_imports()  # as soon as this module is there, before others are imported
