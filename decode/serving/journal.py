"""The journal of an engine: what was drawn, on disk before a token leaves."""

import json
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Final

from ...durable_files import json_value, sync_folder
from ..ledger import Ledger, LedgerHeader, LedgerStep, known_fields
from .server_options import MEGABYTE, JournalOptions

SCHEMA = "anchored-journal/1"
PATTERN = "journal-*.jsonl"
SCHEMA_LINE: Final = {"schema": SCHEMA}

# A line is one of
#   {"schema": ...}                        the first, and one after a line that could not be written
#   {"open": id, "header": {...}, "stops": bool}, with "uncertified": true for a rule that certifies
#     nothing, and "client_id", the id by which the client names its request, if it does
#   {"steps": [[id, step, token_id, accepted, budget, spend, weight, log p*, log p_s], ...]}
#   {"failed": id, "error": "..."}
#   {"ended": id}, after its last step, with "footer": {...} where the engine knows what a ledger's
#     footer says
#   {"continued": "NAME"}, the last one of a file that is full: the name of the next one
# A step that comes twice counts by its last line: a preempted request draws it again.


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
        self.has_failed = False
        """The last line could not be written."""
        self.is_torn = False
        """What the file has of that line is not known."""
        self._begin()

    def _begin(self) -> None:
        path = self._folder / f"journal-{time.time_ns()}-{os.getpid()}.jsonl"
        self._file: BinaryIO = path.open("xb", buffering=0)
        self.path = path
        # An engine in the caller's process says nothing when it is dropped.
        self._closing = weakref.finalize(self, self._file.close)
        self.is_torn, self._size = False, 0
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
        if self.has_failed:
            self._write(SCHEMA_LINE)

    def _write(self, line: Mapping[str, Any]) -> None:
        """Raises OSError where the line is not on the file, whole."""
        with self._lock:
            try:
                if self._size >= self._max_bytes:
                    self._continue()
                self._append(line)
                self.has_failed = False
            except OSError:
                self.has_failed = True
                raise

    def _continue(self) -> None:
        """Go on in a new file, which is there before the full one names it."""
        full, close, start = self._file, self._closing, "\n" if self.is_torn else ""
        self._begin()
        try:  # a reader that misses this line finds the new file as it looks into the folder
            full.write(f"{start}{json.dumps({'continued': self.path.name})}\n".encode())
        finally:
            close()

    def _append(self, line: Mapping[str, Any]) -> None:
        text = ("\n" if self.is_torn else "") + json.dumps(json_value(line)) + "\n"
        content, descriptor = text.encode(), self._file.fileno()
        self.is_torn = True
        try:
            if self._file.write(content) != len(content):
                raise OSError(f"{self.path}: the disk is full")
            if self._is_synced:
                os.fsync(descriptor)
            self._size += len(content)
        except OSError:
            # What nobody is told is taken back, so that the journal has what was sent and no more.
            os.ftruncate(descriptor, self._size)
            os.lseek(descriptor, self._size, os.SEEK_SET)
            self.is_torn = False
            raise
        self.is_torn = False


STEP_FIELDS: Final = (
    *("step", "token_id", "accepted", "budget"),
    *("spend", "weight", "log_prob", "safe_log_prob"),
)


_FOOTER_FIELDS = (
    *("finish_reason", "safe_forwards", "risky_forwards", "work"),
    *("skipped_risky", "drafted", "accepted"),
)
