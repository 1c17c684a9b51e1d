"""Requests to services that cost money: each is paid for once, retried with patience, counted."""

import email.utils
import hashlib
import json
import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .. import AnchoredError
from ..durable_files import write_durably

RETRIED: Final = (408, 409, 425, 429)
"""Statuses that a later attempt may not have; with those from 500 on."""
REFUSED: Final = (401, 403, 404)
"""Statuses that every request would have: a key, an address or a model is wrong."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 60.0
"""Waits double from the first to the longest, unless the service names its own."""
LONGEST_RETRY_AFTER_S = 600.0

Answer = dict[str, Any]


class RequestFailed(AnchoredError):
    """One request has no answer, after all attempts; others may have theirs."""


class RequestRefused(AnchoredError):
    """No request will be answered."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a service sent back."""

    status: int
    headers: Mapping[str, str]
    body: str


class PaidRequests:
    """Answers by request, kept in a folder: what is there is not asked for again.

    An answer is a file of its own, written whole as it comes, under the sha256 of its request as
    canonical JSON. Requests that fail are not kept. Threads may share one; so may processes share
    its folder, though both may then pay for a request that they make at the same time.
    """

    def __init__(
        self, folder: Path, *, max_retries: int = 6, first_wait_s: float = FIRST_WAIT_S
    ) -> None:
        """first_wait_s: seconds before the second attempt of a request."""
        self._folder, self._max_retries, self._first_wait_s = folder, max_retries, first_wait_s
        self._guard, self._stopped = threading.Lock(), threading.Event()
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """By service: requests "asked" for, "kept" (in the folder), "sent", "retried", "failed"."""

    def answer(
        self,
        request: Mapping[str, Any],
        send: Callable[[], Reply],
        read: Callable[[Any], Answer],
    ) -> Answer:
        """The answer to a request, of the folder or of the service.

        request: JSON values that decide the answer, no secrets among them; its "url" names the
        service. send: makes one attempt; OSError is a connection that failed. read: takes what is
        kept from the JSON of a reply; LookupError, TypeError, AttributeError and ValueError are a
        reply that is not what the service promises. Raises: RequestFailed, RequestRefused.
        """
        canonical = json.dumps(request, sort_keys=True, separators=(",", ":"))
        key = hashlib.sha256(canonical.encode()).hexdigest()
        path = self._folder / key[:2] / f"{key}.json"
        with self._guard:
            lock = self._locks[key]
        counts = self.counts[request["url"]]
        self._count(counts, "asked")
        with lock:  # a request that two threads make is sent once
            if (kept := _kept(path, canonical)) is not None:
                self._count(counts, "kept")
                return kept
            answer = self._attempts(counts, send, read)
            path.parent.mkdir(parents=True, exist_ok=True)
            own = path.with_name(f"{path.name}.{os.getpid()}")
            write_durably(own, json.dumps({"request": canonical, "answer": answer}))
            own.replace(path)
            return answer

    def stop(self) -> None:
        """Send nothing from now on: what waits fails, what is on its way comes and is kept."""
        self._stopped.set()

    def _attempts(
        self, counts: Counter[str], send: Callable[[], Reply], read: Callable[[Any], Answer]
    ) -> Answer:
        problem = _Problem("never sent")
        for attempt in range(self._max_retries + 1):
            if self._stopped.is_set():
                break
            self._count(counts, "sent")
            try:
                result = _attempt(send, read)
            except RequestRefused:
                self.stop()  # other threads need not hear the same
                raise
            if not isinstance(result, _Problem):
                return result
            problem = result
            is_last = attempt == self._max_retries or not problem.may_pass
            if is_last or not self._wait(attempt, problem.wait_s):
                break
            self._count(counts, "retried")
        self._count(counts, "failed")
        raise RequestFailed(problem.words)

    def _wait(self, attempt: int, wait_s: float | None) -> bool:
        """Wait as long as the service asks or as backoff says; False if that is not to be."""
        if wait_s is None:
            backoff_s = min(LONGEST_WAIT_S, self._first_wait_s * 2**attempt)
            wait_s = backoff_s * random.uniform(0.75, 1.25)  # threads do not come back together
        return wait_s <= LONGEST_RETRY_AFTER_S and not self._stopped.wait(wait_s)

    def _count(self, counts: Counter[str], name: str) -> None:
        with self._guard:
            counts[name] += 1


@dataclass(frozen=True, slots=True)
class _Problem:
    """Why an attempt gave no answer."""

    words: str
    may_pass: bool = True
    """Another attempt may have an answer."""
    wait_s: float | None = None
    """What the service asks to wait before it."""


def _attempt(send: Callable[[], Reply], read: Callable[[Any], Answer]) -> Answer | _Problem:
    try:
        reply = send()
    except OSError as error:
        return _Problem(f"no connection: {str(error) or type(error).__name__}")
    if reply.status in REFUSED:  # not the body: it may repeat a part of the key
        raise RequestRefused(
            f"the service answers with status {reply.status}: is the key, the address and the "
            "model's name right?"
        )
    if reply.status >= 400:
        may_pass = reply.status >= 500 or reply.status in RETRIED
        words = f"status {reply.status}: {reply.body[:200]!r}"
        return _Problem(words, may_pass, _retry_after_s(reply.headers))
    try:
        return read(json.loads(reply.body))
    except (LookupError, TypeError, AttributeError, ValueError):
        return _Problem(f"malformed reply: {reply.body[:80]!r}")


def _kept(path: Path, canonical: str) -> Answer | None:
    """None for what is not there or is not an answer to this request."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return dict(record["answer"]) if record["request"] == canonical else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that the Retry-After header asks for, as a number or a date; None without one."""
    value = {name.lower(): own for name, own in headers.items()}.get("retry-after", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
