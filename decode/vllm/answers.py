"""Texts of the engine on their way to clients: each leaves after the journal has all of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from ..serving.batch_thread import SHUT_DOWN
from ..serving.journal_reader import LOOK_S, NUM_KEPT, WAIT_S, JournalError, JournalReader
from ..serving.metrics import JournalMetrics

logger = logging.getLogger(__name__)

ABORTED: Final = "abort"
"""vLLM's finish reason of a text that is drawn no further."""

ENDING_S: Final = 5.0
"""Seconds that texts have to end after they are asked to, some steps of a large pair."""

ENDING_LOOK_S: Final = 0.02
"""Seconds between two looks at whether all have ended."""


class Unreserved(Exception):
    """A text that may spend more than was reserved for it: nothing is drawn."""


class ShutDown(Exception):
    """A text that is broken off as the server ends."""

    def __init__(self) -> None:
        super().__init__(SHUT_DOWN)


@dataclass(slots=True)
class Answers:
    """The texts that the engine draws, by the ids they came with, from first to last."""

    journal: JournalReader
    metrics: JournalMetrics = field(default_factory=JournalMetrics)
    noted: Callable[[], Awaitable[Any]] | None = None
    """The engine's promise that the journal holds all that was drawn of texts broken off so far."""
    settle: Callable[[str, float | None], None] | None = None
    """Takes the id of a text and the nats that it has spent, None where they are not known, once
    nothing of it is drawn any more; None where clients have no accounts."""
    shut_down: Callable[[], Exception] = ShutDown
    """The error that a text ends with which the server's end breaks off."""
    is_ending: bool = False
    _figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Figures of texts that have ended, by id, until their answers take them."""
    _reserved: dict[str, float] = field(default_factory=dict)
    """Nats of texts that have not begun."""
    _num_requests: int = 0
    """Requests between the door and the ends of their answers."""
    _open: set[str] = field(default_factory=set)
    _settling: set[asyncio.Task[None]] = field(default_factory=set)
    _look: asyncio.Future[None] | None = None
    """The look into the journal for which all late texts wait."""
    _has_news: bool = True
    """The last look has read something, or none was taken yet."""

    def take(self, name: str) -> dict[str, Any] | None:
        """The figures of a text that has ended, once."""
        return self._figures.pop(name, None)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Let the server's end wait for a request, also before its texts have begun."""
        self._num_requests += 1
        try:
            yield
        finally:
            self._num_requests -= 1

    def reserve(self, bounds: Mapping[str, float]) -> None:
        """Let texts begin whose accounts have reserved so many nats."""
        self._reserved |= bounds

    def release(self, names: Iterable[str]) -> None:
        """Settle those that have not begun, and do not begin any more."""
        for name in names:
            if self._reserved.pop(name, None) is not None and self.settle is not None:
                self.settle(name, 0.0)

    async def held(
        self,
        outputs: AsyncGenerator[Any, None],
        name: str,
        *,
        is_delta: bool,
        most: float = 0.0,
    ) -> AsyncIterator[Any]:
        """The outputs of a request, each after the journal has all of its tokens.

        is_delta: an output has the new tokens alone. most: nats that it may spend. Raises
        JournalError if the journal has other tokens, Unreserved if its account lacks these nats,
        and the error of the server's end if that breaks it off, or began before the text.
        """
        self._begin(name, most)
        token_ids: list[int] = []
        try:
            async with aclosing(outputs):  # the engine stops where the client has left
                async for output in outputs:
                    (text,) = output.outputs
                    start = len(token_ids)
                    token_ids += text.token_ids if is_delta else text.token_ids[start:]
                    await self._written(name, token_ids, start)
                    if output.finished:
                        self._keep(name, self.journal.answer(name, token_ids))
                        if self.is_ending and text.finish_reason == ABORTED:
                            raise self.shut_down()
                    yield output
        finally:
            self._leave(name)

    async def end(
        self, seconds: float, abort: Callable[[list[str]], Awaitable[Any]] | None = None
    ) -> None:
        """Let no text begin any more, and those that have go on for so long; then they end with an
        error. Returns once all are settled. abort: of the engine, by ids; None of one that is gone.
        """
        self.is_ending = True
        until = time.monotonic() + seconds
        while self._open and time.monotonic() < until:
            await asyncio.sleep(ENDING_LOOK_S)
        until = time.monotonic() + ENDING_S
        # A request may still be reserving nats, or be on its way to the engine, which knows no text
        # by its id before that comes: it is asked again.
        while abort and (self._open or self._num_requests) and time.monotonic() < until:
            await abort(sorted(self._open))
            await asyncio.sleep(ENDING_LOOK_S)
        while self._settling:
            await asyncio.wait(self._settling)

    def _begin(self, name: str, most: float) -> None:
        if self.is_ending:
            raise self.shut_down()
        if self.settle is not None:
            if (reserved := self._reserved.get(name)) is None or most > reserved:
                raise Unreserved(f"{name} may spend {most:g} nats, and {reserved} are reserved")
            del self._reserved[name]
        self._open.add(name)

    def _leave(self, name: str) -> None:
        self._open.discard(name)
        record = self.journal.find(name)
        if self.settle is None or self.noted is None or (record is not None and record.is_whole):
            self._close(name)
            return
        # The engine may be drawing more of it, or the journal of a device may lack its last step.
        task = asyncio.ensure_future(self._close_later(name, self.noted))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _close_later(self, name: str, noted: Callable[[], Awaitable[Any]]) -> None:
        try:
            await noted()
        except Exception as error:  # the engine has ended: the next server reads the journal
            logger.error("%s is not settled: %s", name, error)
            self.journal.forget(name)
            return
        self.journal.refresh()
        self._close(name)

    def _close(self, name: str) -> None:
        """Count and settle a text of which nothing is drawn any more."""
        record = self.journal.find(name)
        if record is not None:
            header, ledger = record.header, record.ledger()
            self.metrics.began(len(header.prompt_token_ids), header.debt)
            self.metrics.drew(ledger.steps)
            reason, is_certified = ledger.finish_reason, ledger.certified
            self.metrics.ended(reason, header.bound, is_certified=is_certified)
        if self.settle is not None:
            self.settle(name, 0.0 if record is None else record.spent)
        self.journal.forget(name)

    def _keep(self, name: str, figures: dict[str, Any]) -> None:
        self._figures[name] = figures
        if len(self._figures) > NUM_KEPT:  # of clients that left before their answers
            del self._figures[next(iter(self._figures))]

    async def _written(self, name: str, token_ids: list[int], start: int) -> None:
        """Return once the journal holds the tokens from `start` on; JournalError if it does not
        within WAIT_S."""
        new = token_ids[start:]
        if self.journal.holds(name, new, start):
            return
        began = time.monotonic()
        while not self.journal.holds(name, new, start):
            if time.monotonic() > began + WAIT_S:
                self.metrics.unwritten.inc()
                self.journal.answer(name, token_ids)  # says what it holds
                raise JournalError(f"the journal lacks tokens of request {name} after {WAIT_S:g} s")
            await self._next_look()
        self.metrics.lag.observe(time.monotonic() - began)

    async def _next_look(self) -> None:
        """Return once the journal was read again: at once where the last look has read something,
        as of a step's texts; else after LOOK_S, by one look for all that wait."""
        if self._has_news:
            self._has_news = self.journal.refresh()
            await asyncio.sleep(0)  # others go on while a busy engine keeps writing
            return
        if self._look is None or self._look.done():
            self._look = asyncio.ensure_future(self._read_later())
        await asyncio.shield(self._look)  # a client that leaves ends its wait only

    async def _read_later(self) -> None:
        await asyncio.sleep(LOOK_S)
        self._has_news = self.journal.refresh()
