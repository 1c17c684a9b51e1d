"""The engine of a server, as its endpoints know it: whatever draws the texts of jobs."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ..decoder import Decoder
from .jobs import Job, Refused
from .metrics import Metrics

SHUT_DOWN: Final = "the server is shutting down"
BROKEN: Final = "the server's engine has failed"


class Engine(Protocol):
    """Draws jobs, and tells the server's loop of each symbol once the journal holds it.

    All of it is called in the server's loop.
    """

    decoder: Decoder
    """The pair, its level, and the rule of requests that ask for none."""
    max_length: int
    """Symbols of a prompt and its text at most."""
    metrics: Metrics
    failure: BaseException | None
    """Why nothing is drawn any more."""

    @property
    def refusal(self) -> Refused | None:
        """Why no job is taken any more, None while they are."""

    @property
    def num_waiting(self) -> int:
        """Jobs without a row."""

    @property
    def num_running(self) -> int:
        """Jobs with a row."""

    async def start(self, on_failure: Callable[[], None]) -> None:
        """Begin to draw; returns once a first client would not wait. on_failure: is called in the
        loop where nothing can be drawn any more. Raises Refused where that is so at once."""

    def check(self, jobs: Sequence[Job]) -> None:
        """Raise Refused, of status 429 where there is no room, if these would not be taken now, and
        ValueError for what this engine cannot draw."""

    def submit(self, jobs: Sequence[Job]) -> None:
        """Draw all of these jobs or none, as `check` has it."""

    def cancel(self, jobs: Sequence[Job], refused: Refused | None = None) -> None:
        """Draw these no further. refused: what their last update says; None for clients that have
        left."""

    def refuse_new(self, refused: Refused) -> None:
        """Take no more jobs."""

    async def stop(self) -> None:
        """End what is drawn, with a refusal; returns once all of it is settled."""

    async def probe(self) -> None:
        """Return where a request would be drawn for now; Refused where it would not."""

    async def falls_back(self) -> bool:
        """Whether the CPU's solver draws for an accelerator."""
