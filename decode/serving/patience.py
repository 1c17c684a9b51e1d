"""Connections of clients that may never end what they begin: each has a deadline, all a limit."""

import asyncio
import logging
import resource
import time
from typing import ClassVar, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)

HEAD_S: Final = 10.0
"""Seconds that the head of a request may take to come: a few packets."""

SPARE: Final = 64
"""File descriptors that a server needs besides its connections: journal, accounts, models."""

QUIET_S: Final = 60.0
"""Seconds between two lines of the log that say the same."""


class PatientProtocol(H11Protocol):
    """HTTP as uvicorn has it, but that a head comes within HEAD_S and that connections beyond a
    number are closed at once, which a system without descriptors could not do."""

    most_connections: ClassVar[int] = 512
    last_said_s: ClassVar[float] = -QUIET_S
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        if len(self.connections) >= self.most_connections:
            self.transport = transport
            self._say_full()
            transport.abort()
            return
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """A part of a request."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_S, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE:
            self.transport.close()

    def _say_full(self) -> None:
        if time.monotonic() - PatientProtocol.last_said_s >= QUIET_S:
            PatientProtocol.last_said_s = time.monotonic()
            logger.warning("%d connections are open: more are closed", self.most_connections)


def patient_protocol(most_connections: int) -> type[PatientProtocol]:
    """The protocol with so many connections, or as many as the system lets this process have."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(1, min(most_connections, descriptors - SPARE))
    if most < most_connections:
        logger.warning("%d connections at most, as the system allows %d files", most, descriptors)
    return type("Protocol", (PatientProtocol,), {"most_connections": most})
