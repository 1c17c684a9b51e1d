"""A text that a server decodes, and what it hears of it."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..engine.log_probs import TokenLogProbs
from ..engine.request import Request, RequestState
from ..ledger import Ledger


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
    """Of these tokens, where the request wants them."""
    prompt_log_probs: Sequence[TokenLogProbs] = ()
    """Of the prompt's, in the first update."""
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
    """Its name, which no other job has; in the journal vLLM adds some letters to it."""
    updates: asyncio.Queue[tuple[Job, Update]]
    """Takes the updates of this job; jobs of one answer share it."""
    client_id: str = ""
    """The id by which the client names its request."""
    place: int = 0
    """Among the texts of the answer."""
    is_recorded: bool = True
    """False for a draw that is no client's."""
    queued_s: float = field(default_factory=time.monotonic)
    """When it came, by `time.monotonic`."""
    state: RequestState | None = None
    """Since it has a row."""
    num_reported: int = 0
    """Symbols of its updates so far."""
    journal_id: str = ""
    """Its name in the journal, once that holds its header."""
    is_unwritten: bool = False
    """Nobody knows whether the journal has tokens that were drawn and not reported."""
    settle: Callable[[str, float | None], None] | None = None
    """Takes its name and the nats that it has spent, None where they are not known, at its end."""

    def end(self) -> None:
        """Settle what all tokens spent that were reported; nothing is drawn any more."""
        steps = () if self.state is None else self.state.steps[: self.num_reported]
        self.settled(None if self.is_unwritten else math.fsum(step.spend for step in steps))

    def settled(self, spent: float | None) -> None:
        """Settle so many nats, None where they are not known, unless that was done before."""
        if self.settle is not None:
            is_known = spent is not None and math.isfinite(spent)
            self.settle(self.request_id, spent if is_known else None)
            self.settle = None
