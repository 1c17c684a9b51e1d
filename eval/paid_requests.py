"""Requests to services that cost money: each answer is kept in a folder and paid for once."""

import hashlib
import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..durable_files import write_durably
from ..errors import AnchoredError

if TYPE_CHECKING:
    import openai

REFUSED: Final = (401, 403, 404)
"""Statuses that every request would have: a key, an address or a model is wrong."""

REPEATED: Final = 16
"""Failures of one kind in a row after which nothing else is asked: a quota is used up, or the
service does not know an option."""
MOST_SHOWN: Final = 200
"""Characters of a reply that a message shows."""

Answer = dict[str, Any]


class RequestFailed(AnchoredError):
    """One request has no answer, after all attempts; others may have theirs."""

    reply: str = ""
    """All that the service said, of which the message shows the beginning."""


class RequestRefused(AnchoredError):
    """No request will be answered."""


def service_client(**options: Any) -> "openai.OpenAI":
    """A client of the openai package for which the status in a reply is the reply's status.
    Gateways pass a service's errors on as {"error": {"code": 429, ...}} with status 200."""
    import openai

    hooks = {"response": [_take_status]}
    return openai.OpenAI(**options, http_client=openai.DefaultHttpxClient(event_hooks=hooks))


def _take_status(response: Any) -> None:
    response.read()
    try:
        status = int(response.json()["error"]["code"])
    except (ValueError, LookupError, TypeError):
        return
    if response.is_success and 400 <= status < 600:
        response.status_code = status


class PaidRequests:
    """Answers by request, kept in a folder: what is there is not asked for again. An answer is a
    file, written whole as it comes, under the sha256 of its request as canonical JSON. Requests
    that fail are not kept, nor are answers of no use, which this object remembers. Threads may
    share one; so may processes share its folder, though both may then pay for a request that they
    make at the same time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._guard, self._stopped = threading.Lock(), threading.Event()
        self._locks: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Requests by service: "asked" for, "kept" (in the folder), "sent", "failed"."""
        self._useless: dict[Path, Answer] = {}
        self._in_a_row: Counter[str] = Counter()
        """Failures since the last answer, by kind."""
        self.repeated = REPEATED
        """Failures of one kind in a row that end everything: at least two of each thread that asks,
        as the first of each may be mended."""

    def answer(
        self,
        request: Mapping[str, Any],
        send: Callable[[], str],
        read: Callable[[Any], Answer],
        is_useful: Callable[[Answer], bool] = bool,
    ) -> Answer:
        """The answer to a request, from the folder or from the service. request: JSON values that
        decide the answer, no secrets among them; its "url" names the service. send: gets the body
        of the reply by a client of the openai package, which retries what may pass. read: takes
        what is kept from the JSON of the body; LookupError, TypeError, AttributeError and
        ValueError mean a body without the promised form. is_useful: whether an answer is kept.
        Raises: RequestFailed, RequestRefused."""
        canonical, path = self._file(request)
        with self._guard:
            lock = self._locks[path]
        counts = self.counts[request["url"]]
        self._count(counts, "asked")
        with lock:  # a request that two threads make is sent once
            kept = self.kept(request, is_useful) or self._useless.get(path)
            if kept is not None:
                self._count(counts, "kept")
                return kept
            answer = self._sent(counts, send, read)
            if is_useful(answer):
                write_durably(path, json.dumps({"request": canonical, "answer": answer}))
            else:
                self._useless[path] = answer
            return answer

    def kept(
        self, request: Mapping[str, Any], is_useful: Callable[[Answer], bool]
    ) -> Answer | None:
        """The useful answer in the folder; None without one, and for a file of something else."""
        canonical, path = self._file(request)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            answer = dict(record["answer"])
            return answer if record["request"] == canonical and is_useful(answer) else None
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def _file(self, request: Mapping[str, Any]) -> tuple[str, Path]:
        canonical = json.dumps(request, sort_keys=True, separators=(",", ":"))
        key = hashlib.sha256(canonical.encode()).hexdigest()
        return canonical, self._folder / key[:2] / f"{key}.json"

    def stop(self) -> None:
        """Send nothing from now on: what waits fails, what is on its way comes and is kept."""
        self._stopped.set()

    def _sent(
        self, counts: Counter[str], send: Callable[[], str], read: Callable[[Any], Answer]
    ) -> Answer:
        import openai

        if self._stopped.is_set():
            raise self._failure(counts, "never sent")
        self._count(counts, "sent")
        try:
            body = send()
        except openai.APIStatusError as error:
            if error.status_code in REFUSED:
                self.stop()  # other threads need not hear the same
                # The body is left out, as it may repeat a part of the key.
                raise RequestRefused(
                    f"the service answers with status {error.status_code}: is the key, the address "
                    "and the model's name right?"
                ) from None
            reason = f"status {error.status_code}"
            raise self._failure(counts, reason, error.response.text) from None
        except openai.APIConnectionError as error:
            name = type(error.__cause__ or error).__name__
            raise self._failure(counts, f"no connection: {error} ({name})") from None
        try:
            answer = read(json.loads(body))
        except (LookupError, TypeError, AttributeError, ValueError):
            raise self._failure(counts, "malformed reply", body) from None
        self._in_a_row.clear()
        return answer

    def _failure(self, counts: Counter[str], words: str, reply: str = "") -> AnchoredError:
        """The error to raise; after many of one kind in a row, that no request will do better."""
        self._count(counts, "failed")
        kind = words.partition(":")[0]
        words += f": {reply[:MOST_SHOWN]!r}" if reply else ""
        self._count(self._in_a_row, kind)
        if self._in_a_row[kind] < self.repeated or self._stopped.is_set():
            failed = RequestFailed(words)
            failed.reply = reply
            return failed
        self.stop()
        return RequestRefused(f"{self.repeated} requests in a row failed alike: {words}")

    def _count(self, counts: Counter[str], name: str) -> None:
        with self._guard:
            counts[name] += 1
