"""A polite end: SIGTERM asks the run to stop after the step that it is in."""

import signal
from types import FrameType

# Slurm sends SIGTERM before it preempts a job or its time is up, torchrun passes it to its workers.
STOP_SIGNALS = (signal.SIGTERM,)


class StopSignal:
    """Remembers that a stop signal has come to this process; nothing else happens on arrival.

    While it is installed the signal kills nothing, so whoever installs it must look at `arrived`.
    """

    def __init__(self) -> None:
        self.arrived = False

    def install(self) -> None:
        """Listen from now on; main thread only."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._remember)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.arrived = True
