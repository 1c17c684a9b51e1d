"""A progress bar of tokenising: bytes and tokens a second, and files."""

import sys
import time

from tqdm import tqdm

from .document_encoder import EncodedDocument

_LOG_SECONDS = 30.0
_REFRESH_SECONDS = 0.5


class Throughput:
    """Counts what was tokenised since the start, on stderr: a bar, or a line now and then."""

    def __init__(self, description: str, *, num_files: int) -> None:
        self.num_bytes = 0
        self.num_tokens = 0
        self._num_files = num_files
        self._num_finished = 0
        self._start = self._next_refresh = time.perf_counter()
        self._bar = tqdm(
            desc=description,
            unit="B",
            unit_scale=True,
            file=sys.stderr,
            mininterval=_REFRESH_SECONDS if sys.stderr.isatty() else _LOG_SECONDS,
        )

    def add(self, encoded: EncodedDocument) -> None:
        """Count a document."""
        if encoded.token_ids is not None:
            num_bytes = self.num_bytes + len(encoded.document.text or b"")
            self.advance_to(num_bytes, self.num_tokens + len(encoded.token_ids))

    def advance_to(self, num_bytes: int, num_tokens: int) -> None:
        """Set the totals."""
        self.num_bytes, self.num_tokens = num_bytes, num_tokens
        if time.perf_counter() >= self._next_refresh:
            self._refresh()

    def finish_file(self) -> None:
        """Count an input file as done."""
        self._num_finished += 1
        self._refresh()

    def close(self) -> str:
        """End the bar; returns the average rates in words."""
        self._refresh()
        self._bar.close()
        seconds = max(time.perf_counter() - self._start, 1e-9)
        return (
            f"{self.num_bytes / seconds / 1e6:.2f} MB/s, {self.num_tokens / seconds:,.0f} tokens/s"
        )

    def _refresh(self) -> None:
        self._next_refresh = time.perf_counter() + _REFRESH_SECONDS
        self._bar.set_postfix_str(self._rate(), refresh=False)
        self._bar.update(self.num_bytes - self._bar.n)

    def _rate(self) -> str:
        seconds = max(time.perf_counter() - self._start, 1e-9)
        rate = f"{self.num_tokens / seconds:,.0f} tokens/s"
        return f"{rate}, {self._num_finished}/{self._num_files} files"
