"""The journal of an engine: what was drawn, on disk before a token leaves."""

import json
import logging
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Final

from ...durable_files import json_value, sync_folder
from ..decoder import Decoder
from ..generation import ledger_header, request_ledger
from ..ledger import Ledger, LedgerHeader, LedgerStep, known_fields
from ..rules.rule import OpenRule
from ..settings import SamplingConfig
from .engine import Job, Refused, Update
from .server_options import MEGABYTE, JournalOptions

logger = logging.getLogger(__name__)

PATTERN = "journal-*.jsonl"
SCHEMA_LINE: Final = {"schema": "anchored-journal/1"}

# A line is one of
#   {"schema": ...}                        the first, and one after lines that could not be written
#   {"open": id, "header": {...}, "stops": bool}, with "uncertified": true for a rule that certifies
#     nothing, and "client_id", the id by which the client names its request, if it does
#   {"steps": [[id, step, token_id, accepted, budget, spend, weight, log p*, log p_s], ...]}
#   {"failed": id, "error": "..."}
#   {"ended": id}, after its last step, with "footer": {...} where the engine knows what a ledger's
#     footer says
#   {"full": true}, the last one of a file that the next one continues
# A step that comes twice counts by its last line: a preempted request draws it again.

UNWRITTEN: Final = Refused(503, "the journal cannot be written", may_pass=False)
"""Raised without the frames of the last time, which would add up while a disk is full."""

DEFAULT_BYTES: Final = JournalOptions().journal_mb * MEGABYTE


class JournalWriter:
    """Appends lines to new files, each by one write that a killed process leaves whole."""

    def __init__(
        self, folder: Path | str, *, max_bytes: int = DEFAULT_BYTES, is_synced: bool = False
    ) -> None:
        """max_bytes: of a file, after which the next one begins. is_synced: return from each write
        once it is on the disk. Raises OSError where no file can be made there."""
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._max_bytes, self._is_synced = max_bytes, is_synced
        self._lock = Lock()
        self._has_failed = False
        """The file may have a part of a line that could not be written."""
        self._begin()

    def _begin(self) -> None:
        path = self._folder / f"journal-{time.time_ns()}-{os.getpid()}.jsonl"
        self._file: BinaryIO = path.open("ab", buffering=0)
        self.path, self._size = path, 0
        # An engine in the caller's process says nothing when it is dropped.
        self._closing = weakref.finalize(self, self._file.close)
        self._append(SCHEMA_LINE)
        if self._is_synced:
            sync_folder(self._folder)

    def open(
        self,
        request_id: str,
        header: LedgerHeader,
        *,
        has_stops: bool,
        is_certified: bool = True,
        client_id: str = "",
    ) -> None:
        """A request that draws its first token. has_stops: its caller named further ends.
        is_certified: of its rule. client_id: "" where the client names its request by none."""
        line = {"open": request_id, "header": known_fields(header), "stops": has_stops}
        line |= {} if is_certified else {"uncertified": True}
        self._write(line | ({"client_id": client_id} if client_id else {}))

    def steps(self, rows: Sequence[tuple[str, LedgerStep]]) -> None:
        """The tokens that one step of the engine drew."""
        if rows:
            lists = [
                [name, *(getattr(step, field) for field in STEP_FIELDS)] for name, step in rows
            ]
            self._write({"steps": lists})

    def close(self) -> None:
        """Nothing more is written; else the file is closed when the writer is dropped."""
        self._closing()

    def fail(self, request_id: str, error: str) -> None:
        """A request that ends without a distribution to draw from."""
        self._write({"failed": request_id, "error": error})

    def end(self, request_id: str, ledger: Ledger | None = None) -> None:
        """A request that draws no more; how it ended and what it took, where that is known."""
        line: dict[str, Any] = {"ended": request_id}
        if ledger is not None:
            line["footer"] = {name: getattr(ledger, name) for name in _FOOTER_FIELDS}
        self._write(line)

    def try_again(self) -> None:
        """Return where lines can be written; OSError where they still cannot. The line that shows
        it says nothing."""
        if self._has_failed:
            self._write(SCHEMA_LINE)

    def _write(self, line: Mapping[str, Any]) -> None:
        """Raises OSError where the line is not on the file, whole."""
        with self._lock:
            if self._size >= self._max_bytes:
                self._append({"full": True})
                close = self._closing
                self._begin()
                close()
            self._append(line)

    def _append(self, line: Mapping[str, Any]) -> None:
        content, descriptor = (json.dumps(json_value(line)) + "\n").encode(), self._file.fileno()
        if self._has_failed:
            os.ftruncate(descriptor, self._size)
        self._has_failed = True
        try:
            if self._file.write(content) != len(content):
                raise OSError(f"{self.path}: the disk is full")
            if self._is_synced:
                os.fsync(descriptor)
        except OSError:
            # What nobody is told is taken back: the journal has what was sent and no more.
            os.ftruncate(descriptor, self._size)
            raise
        self._size += len(content)
        self._has_failed = False


STEP_FIELDS: Final = (
    *("step", "token_id", "accepted", "budget"),
    *("spend", "weight", "log_prob", "safe_log_prob"),
)


_FOOTER_FIELDS = (
    *("finish_reason", "safe_forwards", "risky_forwards", "work"),
    *("skipped_risky", "drafted", "accepted"),
)


class Recording:
    """Writes what is drawn for jobs: what it returns as updates, the journal holds."""

    def __init__(self, decoder: Decoder, journal: JournalWriter | None) -> None:
        """journal: None where another process writes it, before it says what it has drawn."""
        self._decoder, self._journal = decoder, journal

    def updates(self, jobs: Sequence[Job]) -> list[tuple[Job, Update]]:
        """The new tokens of some jobs, once they are in the journal.

        Where that cannot be written, none of them hears of it: that is the last update of each.
        """
        news = [(job, update) for job in jobs if (update := self._update(job)) is not None]
        try:
            if self._journal is not None:
                self._write(self._journal, [(j, update) for j, update in news if j.is_recorded])
        except OSError as error:
            logger.error("%s: %s", UNWRITTEN, error)
            return [(job, Update(refused=UNWRITTEN)) for job, _ in news]
        for job, update in news:
            job.num_reported += len(update.token_ids)
        return news

    def break_off(self, job: Job) -> None:
        """A job that is not decoded to its end: the journal says so, if it has begun."""
        if self._journal is None or not job.is_open:
            return
        try:
            self._journal.end(job.request_id, self._ledger(job))
        except OSError as error:  # what the journal holds of it is all that was sent
            logger.error("%s: %s", UNWRITTEN, error)

    def _update(self, job: Job) -> Update | None:
        """None where nothing is new."""
        state = job.state
        assert state is not None, "a job in the queue has no news"
        steps, texts = state.steps[job.num_reported :], state.texts[job.num_reported :]
        if not (steps or state.is_finished):
            return None
        return Update(
            text="".join(texts),
            token_ids=[step.token_id for step in steps],
            log_probs=state.log_probs[job.num_reported : len(state.steps)],
            prompt_log_probs=() if job.num_reported else state.prompt_log_probs,
            ledger=self._ledger(job) if state.is_finished else None,
            error=state.error,
        )

    def _write(self, journal: JournalWriter, news: Sequence[tuple[Job, Update]]) -> None:
        rows: list[tuple[str, LedgerStep]] = []
        for job, _ in news:
            self._open(journal, job)
            assert job.state is not None
            rows += [(job.request_id, step) for step in job.state.steps[job.num_reported :]]
        journal.steps(rows)
        for job, update in news:
            if update.error:
                journal.fail(job.request_id, update.error)
            if update.ledger is not None:
                journal.end(job.request_id, update.ledger)

    def _open(self, journal: JournalWriter, job: Job) -> None:
        if job.is_open:
            return
        rule, sampling = self._way(job)
        assert job.state is not None
        journal.open(
            job.request_id,
            ledger_header(self._decoder.level, rule, sampling, job.state),
            has_stops=bool(job.request.stop),
            is_certified=rule.is_certified,
            client_id=job.client_id,
        )
        job.is_open = True

    def _ledger(self, job: Job) -> Ledger:
        rule, sampling = self._way(job)
        assert job.state is not None
        return request_ledger(self._decoder.level, rule, sampling, job.state)

    def _way(self, job: Job) -> tuple[OpenRule, SamplingConfig]:
        request = job.request
        return request.rule or self._decoder.open_rule, request.sampling or SamplingConfig()
