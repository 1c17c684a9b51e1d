"""The engine of a server, as its endpoints know it: whatever draws the texts of jobs."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..decoder import Decoder
from ..engine.log_probs import TokenLogProbs
from ..engine.request import Request, RequestState
from ..ledger import Ledger

if TYPE_CHECKING:
    from .gauges import Metrics  # which counts jobs

SHUT_DOWN: Final = "the server is shutting down"
BROKEN: Final = "the server's engine has failed"


class Refused(Exception):
    """A request that is not taken, or not decoded to its end: the status and the reason."""

    def __init__(
        self, status: int, reason: str, *, may_pass: bool | None = None, **more: Any
    ) -> None:
        """may_pass: it may be taken soon, here or elsewhere; unless it is said, of a full queue and
        of a server that ends. more: fields of the error besides."""
        super().__init__(reason)
        self.status, self.reason, self.more = status, reason, more
        self.may_pass = status in (429, 503) if may_pass is None else may_pass


@dataclass(frozen=True, slots=True)
class Update:
    """The changes of a text since the last update."""

    text: str = ""
    token_ids: Sequence[int] = ()
    log_probs: Sequence[TokenLogProbs] = ()
    """The log-probabilities of these tokens, where the request wants them."""
    prompt_log_probs: Sequence[TokenLogProbs] = ()
    """The log-probabilities of the prompt's tokens, in the first update."""
    ledger: Ledger | None = None
    """The whole record, once the text has ended."""
    error: str = ""
    """Why the text has failed, in its last update."""
    refused: Refused | None = None
    """Why it is not decoded to its end, in its last update."""

    @property
    def is_last(self) -> bool:
        return self.ledger is not None or self.refused is not None


@dataclass(eq=False, kw_only=True, slots=True)
class Job:
    """A text, from the queue to its end."""

    request: Request
    request_id: str
    """Its name, also in the journal, which no other job has."""
    updates: asyncio.Queue[tuple[Job, Update]]
    """Takes the updates of this job; jobs of one answer share it."""
    client_id: str = ""
    """The id by which the client names its request."""
    place: int = 0
    """Index among the texts of the answer."""
    is_recorded: bool = True
    """False for a draw that is no client's."""
    queued_s: float = field(default_factory=time.monotonic)
    """When it came, by `time.monotonic`."""
    state: RequestState | None = None
    """Since it has a row."""
    num_reported: int = 0
    """Symbols of its updates so far."""
    is_open: bool = False
    """The journal holds its header."""
    settle: Callable[[str, float | None], None] | None = None
    """Takes its name and the nats that it has spent, None where they are not known, at its end."""

    def end(self) -> None:
        """Settle what all tokens spent that were reported; nothing is drawn any more."""
        steps = () if self.state is None else self.state.steps[: self.num_reported]
        self.settled(math.fsum(step.spend for step in steps))

    def settled(self, spent: float | None) -> None:
        """Settle so many nats, None where they are not known, unless that was done before."""
        if self.settle is not None:
            is_known = spent is not None and math.isfinite(spent)
            self.settle(self.request_id, spent if is_known else None)
            self.settle = None


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
    refusal: Refused | None
    """Why no job is taken any more."""

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
