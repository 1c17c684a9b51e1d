"""The one thread that decodes for a server: requests join and leave its batch between steps."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Condition, Thread
from typing import Final

from ...kernels.project import falls_back
from ..ambient import plain_torch
from ..decoder import Decoder
from ..engine.log_probs import TokenLogProbs
from ..engine.paired_batch import PairedBatch
from ..engine.request import Request
from ..engine.score import score_batch
from ..levels.level import Level
from ..rules.anchored import SafeOnly
from ..rules.claims import opened
from ..rules.rule import takes_passage
from ..settings import UNWARPED, SamplingConfig
from ..texts import prompt_requests, request_list, with_values
from .engine import BROKEN, SHUT_DOWN, Job, Refused, Update
from .gauges import Metrics
from .journal import UNWRITTEN, JournalWriter, Recording

logger = logging.getLogger(__name__)

PROBE: Final = "The"
"""The prompt of a draw that shows that rows are drawn: one token or three bytes."""

PROBE_S: Final = 30.0
"""Seconds that such a draw may take, as probes of orchestrators wait no longer."""

BUSY_S: Final = 10.0
"""A step that ended within so many seconds shows the same, while all rows are taken."""


LONGEST: Final = {"token": 32_768, "byte": 1 << 20}
"""Symbols of a prompt and its text, unless a number is named, of models whose config names no
context, and of bytes, of which tokens decide."""


class BatchThread:
    """The engine that decodes jobs in one batch of a `Decoder`: see `Engine`.

    A row is free at the step after its client has left. Where texts cannot join a batch midway,
    those that wait begin together once all others have ended. If a step raises, every job is
    refused and nothing is decoded any more, because the KV caches may be inconsistent.
    """

    def __init__(
        self,
        decoder: Decoder,
        journal: JournalWriter,
        *,
        max_length: int | None,
        max_waiting: int,
    ) -> None:
        """max_length: symbols of a prompt and its text; None for what the models have positions
        for, beyond which it is a ValueError. max_waiting: jobs without a row."""
        self.decoder, self.max_waiting = decoder, max_waiting
        self.max_length, self.metrics = _max_length(decoder.level, max_length), Metrics()
        self.failure: BaseException | None = None
        self._last_step_s = -float("inf")
        """When the last step ended, by `time.monotonic`."""
        self._recording = Recording(decoder, journal)
        self._journal = journal
        self._joins = decoder.level.rows_can_join(self.max_length)
        self._batch: PairedBatch | None = None
        self._changed = Condition()
        # Of both threads, under the lock of `_changed`.
        self._waiting: deque[Job] = deque()
        self._cancelled: list[tuple[Job, Refused | None]] = []
        self.refusal: Refused | None = None
        self._is_ending = False
        # Of the batch's thread alone.
        self._running: list[Job] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_failure: Callable[[], None] = lambda: None
        self._thread = Thread(target=self._run, name="anchored-batch", daemon=True)
        self._probing = asyncio.Lock()

    async def start(self, on_failure: Callable[[], None]) -> None:
        """Begin to decode, with a first row: it loads what the first client would wait for."""
        self._loop, self._on_failure = asyncio.get_running_loop(), on_failure
        self._thread.start()
        await self.probe()

    async def probe(self) -> None:
        """Draw one row that no ledger has, unless others are being drawn."""
        self.check(())
        if self._running and time.monotonic() - self._last_step_s < BUSY_S:
            return
        async with self._probing:
            updates: asyncio.Queue[tuple[Job, Update]] = asyncio.Queue()
            rule, level = self.decoder.open_rule, self.decoder.level
            passage = PROBE if takes_passage(rule) else None
            texts = with_values(prompt_requests(level, PROBE), 1, passages=passage)
            (request,) = request_list(level, rule, texts, is_alone=True)
            job = Job(request=request, request_id="probe", updates=updates, is_recorded=False)
            self.submit([job])
            try:
                _, update = await asyncio.wait_for(updates.get(), PROBE_S)
            except TimeoutError:
                raise Refused(503, f"no row was drawn within {PROBE_S:g} s") from None
            finally:
                self.cancel([job])
        if update.refused is not None or update.error:
            raise update.refused or Refused(503, update.error)

    async def falls_back(self) -> bool:
        return falls_back()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def submit(self, jobs: Sequence[Job]) -> None:
        with self._changed:
            self.check(jobs)
            self._waiting.extend(jobs)
            self._changed.notify()

    def check(self, jobs: Sequence[Job]) -> None:
        if self.refusal is not None:
            raise self.refusal
        try:
            self._journal.try_again()
        except OSError as error:
            logger.error("%s: %s", UNWRITTEN.reason, error)
            raise UNWRITTEN.with_traceback(None) from None
        num_rows = self.decoder.batch_size - self.num_running
        if len(self._waiting) + len(jobs) > self.max_waiting + max(0, num_rows):
            raise Refused(429, f"{len(self._waiting)} texts wait already: try again later")

    def cancel(self, jobs: Sequence[Job], refused: Refused | None = None) -> None:
        """Those that wait never begin, rows of others are freed at the next step."""
        with self._changed:
            for job in jobs:
                if job in self._waiting:
                    self._waiting.remove(job)
                    job.end()
                    if refused is not None:
                        job.updates.put_nowait((job, Update(refused=refused)))
                else:
                    self._cancelled.append((job, refused))
            self._changed.notify()

    def refuse_new(self, refused: Refused) -> None:
        """Take no more jobs, and drop those that wait."""
        with self._changed:
            self.refusal = self.refusal or refused
            waiting = list(self._waiting)
        self.cancel(waiting, refused)

    async def stop(self) -> None:
        """End the thread after its step."""
        refused = Refused(503, SHUT_DOWN)
        self.refuse_new(refused)
        with self._changed:
            self._cancelled += [(job, refused) for job in self._running]
            self._is_ending = True
            self._changed.notify()
        if self._thread.ident is not None:  # it was started
            await asyncio.to_thread(self._thread.join)
        self._journal.close()

    def _run(self) -> None:
        try:
            with plain_torch():
                while self._turn():
                    pass
        except BaseException as error:
            logger.exception(BROKEN)
            self._fail(error)

    def _turn(self) -> bool:
        """One step, with those that leave before it and those that join; False at the end."""
        # 1. Wait until there is something to do.
        with self._changed:
            while not (self._waiting or self._running or self._cancelled or self._is_ending):
                self._changed.wait()
            cancelled, self._cancelled = self._cancelled, []
            is_ending = self._is_ending
        updates: list[tuple[Job, Update]] = []
        # 2. Rows of clients that have left are free again.
        for job, refused in cancelled:
            if job in self._running:
                updates += self._leave(job, refused)
        # 3. Those that wait join where rows are free.
        joining = [] if is_ending else self._joining()
        if joining:
            updates += self._admit(joining)
        # 4. A token of each row; what was drawn is on the disk before anybody hears of it.
        if self._running:
            updates += self._step()
        if updates:
            self._tell(updates)
        return not is_ending

    def _joining(self) -> list[Job]:
        """The jobs that begin now, no longer in the queue."""
        if not (self._joins or self._running):
            self._batch = None
        if self._batch is None:
            num_free = self.decoder.batch_size
        else:
            num_free = len(self._batch.free_rows) if self._joins else 0
        with self._changed:
            count = min(num_free, len(self._waiting))
            joining = [self._waiting.popleft() for _ in range(count)]
            self._running += joining
        return joining

    def _admit(self, joining: list[Job]) -> list[tuple[Job, Update]]:
        if self._batch is None:
            num_rows, length = self.decoder.batch_size, self.max_length
            if not self._joins:
                num_rows, length = len(joining), max(job.request.max_length for job in joining)
            self._batch = self.decoder.open_batch(num_rows, length, SamplingConfig())
        states = self._batch.admit([job.request for job in joining])
        for job, state in zip(joining, states, strict=True):
            job.state = state
            if job.request.echoes:
                state.prompt_log_probs = scored_prompt(self.decoder, job.request)
        self.metrics.joined(joining)
        return self._updates([job for job in joining if job.state and job.state.is_finished])

    def _step(self) -> list[tuple[Job, Update]]:
        assert self._batch is not None
        start_s = time.perf_counter()
        self._batch.step()
        updates = self._updates(self._running)
        self._last_step_s = time.monotonic()
        self.metrics.stepped(time.perf_counter() - start_s)
        return updates

    def _updates(self, jobs: Sequence[Job]) -> list[tuple[Job, Update]]:
        """Updates of some jobs; those of which it is the last one have no row any more."""
        updates = self._recording.updates(jobs)
        for job, update in updates:
            if update.is_last:
                self._free(job)
                self._running.remove(job)
                job.end()
        self.metrics.reported(updates)
        return updates

    def _leave(self, job: Job, refused: Refused | None) -> list[tuple[Job, Update]]:
        """A job that is not decoded to its end; its last update, unless its client has left."""
        self._free(job)
        self._running.remove(job)
        self._recording.break_off(job)
        self.metrics.broken_off(job)
        job.end()
        return [] if refused is None else [(job, Update(refused=refused))]

    def _free(self, job: Job) -> None:
        if self._batch is not None and job.state is not None:
            self._batch.cancel(job.state)

    def _fail(self, error: BaseException) -> None:
        refused = Refused(500, f"{BROKEN}: {type(error).__name__}: {error}")
        with self._changed:
            self.failure, self.refusal = error, refused
            jobs = [*self._running, *self._waiting]
            self._waiting.clear()
            self._running = []
        for job in jobs:
            job.end()
        self._tell([(job, Update(refused=refused)) for job in jobs])
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._on_failure)

    def _tell(self, updates: list[tuple[Job, Update]]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(_deliver, updates)


def _deliver(updates: list[tuple[Job, Update]]) -> None:
    for job, update in updates:
        job.updates.put_nowait((job, update))


def _max_length(level: Level, most: int | None) -> int:
    context = level.context_length
    if most is None:
        return (level.name == "token" and context) or LONGEST[level.name]
    if context is not None and most > context:
        raise ValueError(f"--max-length must be <= {context}, the models' context, got {most}")
    return most


def scored_prompt(decoder: Decoder, request: Request) -> list[TokenLogProbs]:
    """The log-probabilities of a prompt's tokens but the first, each after those before it."""
    first, rest = request.prompt_token_ids[:1], request.prompt_token_ids[1:]
    if not rest:
        return []
    rule = request.rule or decoder.open_rule
    if not request.exposes:
        rule = opened(SafeOnly(), decoder.level)
    begun = replace(request, prompt_token_ids=first, max_new_tokens=len(rest))
    (score,) = score_batch(decoder.level, rule, UNWARPED, [begun], [rest])
    return score.log_probs
