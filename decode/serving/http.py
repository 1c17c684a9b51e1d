"""HTTP before and below the endpoints: connections, hosts, keys, bodies, refusals, events."""

import asyncio
import hashlib
import hmac
import json
import logging
import resource
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from .anchored_options import CLIENT_ID
from .gauges import Metrics

logger = logging.getLogger(__name__)

REQUEST_ID: Final = "x-request-id"

BODY_S: Final = 60.0
"""Seconds that a body may take to come: 8 MiB by a megabit a second."""

ERROR_TYPES: Final = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "BodyTooLargeError",
    415: "UnsupportedMediaTypeError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
"""Types of errors by status, as OpenAI's clients name their exceptions."""

LONGEST_MESSAGE: Final = 1000
"""Most characters of an error's message: what a client sent does not come back by the megabyte."""

EVENT_END: Final = b"\n\n"
_DATA: Final = b"data: "
DONE: Final = _DATA + b"[DONE]" + EVENT_END
"""Ends a stream."""

OPEN_PATHS: Final = ("/health", "/ready")
"""Paths without a key, which probes of orchestrators ask for; they say up or down, and ready or
not, for which one row is drawn at a time."""

PATHS: Final = frozenset(
    {
        *("/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/anchored/account"),
        *(*OPEN_PATHS, "/metrics", "/tokenize", "/detokenize"),
    }
)
"""Paths that metrics name; others are counted together."""


CLIENT: Final = "anchored.client"
"""The entry of a scope with the name of the client whose key a request has, "" for none."""

HEAD_S: Final = 10.0
"""Seconds that the head of a request may take to come: a few packets."""

SPARE: Final = 64
"""File descriptors that a server needs besides its connections: journal, accounts, models."""

QUIET_S: Final = 60.0
"""Seconds between two lines of the log that say the same."""


def read_keys(path: Path) -> dict[bytes, str]:
    """The sha256 digests of the keys of a file, one a line, which no client has by name; empty
    lines and # comments are none.

    Raises ValueError for a file without a key, and for a key that no header can hold.
    """
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ValueError(f"{path} holds no key: write one a line")
    for number, key in enumerate(keys, start=1):
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError(f"{path}: key {number} must be printable ASCII without spaces")
    return {hashlib.sha256(key.encode()).digest(): "" for key in keys}


class Guard:
    """Lets through what comes to one of its hosts with one of its keys, and counts answers.

    A browser's page of another site can do nothing here: its Host differs where it has rebound a
    name to this machine, and JSON makes its browser ask first, which is answered by 405.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        *,
        keys_now: Callable[[], Mapping[bytes, str]],
        hosts: Collection[str],
        root_path: str = "",
    ) -> None:
        """keys_now: names of clients by the digests of their keys, none for a server without keys.
        hosts: names that clients call the server by, without ports, none for any. root_path: a
        prefix of paths that a proxy may have left."""
        self._app, self._metrics, self._keys_now = app, metrics, keys_now
        self._hosts, self._root = {host.lower() for host in hosts}, root_path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        if scope["type"] != "http":
            return  # no websocket is served: the server closes it
        path = scope["path"]
        if self._root and f"{path}/".startswith(f"{self._root}/"):
            path = path[len(self._root) :] or "/"
            scope = {**scope, "path": path}
        label, headers = path if path in PATHS else "other", Headers(scope=scope)
        named = headers.get(REQUEST_ID, "")
        if not CLIENT_ID.fullmatch(named):
            named = f"req-{uuid.uuid4().hex}"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(label, str(message["status"])).inc()
                MutableHeaders(scope=message)[REQUEST_ID] = named
            await send(message)

        client = self._client_of(headers)
        if (refusal := self._refusal(scope, headers, client)) is None:
            await self._app({**scope, CLIENT: client or ""}, receive, counted)
            return
        status, message = refusal
        self._metrics.refusals.labels(f"status_{status}").inc()
        # Its body was not read, so nothing that follows on the connection can be.
        more = {"connection": "close", **({"www-authenticate": "Bearer"} if status == 401 else {})}
        await refusal_of(status, message, more)(scope, receive, counted)

    def _refusal(
        self, scope: Scope, headers: Headers, client: str | None
    ) -> tuple[int, str] | None:
        host = headers.get("host", "").lower()
        if self._hosts and _without_port(host) not in self._hosts:
            return 403, "the Host header names another server: --allowed-host lets it in"
        # A browser asks without its key what it may send.
        is_open = scope["path"] in OPEN_PATHS or scope["method"] == "OPTIONS"
        if self._keys_now() and not is_open and client is None:
            what = "this key is not known" if "authorization" in headers else "a key is needed"
            return 401, f"{what}: Authorization: Bearer KEY"
        if scope["method"] == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                return 415, "the body must be JSON: send Content-Type: application/json"
            if not CLIENT_ID.fullmatch(headers.get(REQUEST_ID, "-")):
                return 400, "x-request-id must have up to 128 letters, digits or any of .:/+=@_-"
        return None

    def _client_of(self, headers: Headers) -> str | None:
        """The client whose key the request has; None without one that is known."""
        scheme, _, key = headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(key.strip().encode("latin-1")).digest()
        # All are compared, in constant time, so that nothing is learnt of any.
        matches = [
            name for key, name in self._keys_now().items() if hmac.compare_digest(digest, key)
        ]
        return matches[0] if matches and scheme.lower() == "bearer" else None


def _without_port(host: str) -> str:
    if host.startswith("["):  # an IPv6 address
        return host.partition("]")[0][1:]
    return host.partition(":")[0]


class PatientProtocol(H11Protocol):
    """HTTP as uvicorn has it, but that a head comes within HEAD_S and that connections beyond a
    number are closed at once, which a system without descriptors could not do."""

    most_connections: ClassVar[int] = 512
    last_said_s: ClassVar[float] = -QUIET_S
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        if len(self.connections) >= self.most_connections:
            self.transport = transport
            self._say_full()
            transport.abort()
            return
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """A part of a request."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_S, self._give_up)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE:
            self.transport.close()

    def _say_full(self) -> None:
        if time.monotonic() - PatientProtocol.last_said_s >= QUIET_S:
            PatientProtocol.last_said_s = time.monotonic()
            logger.warning("%d connections are open: more are closed", self.most_connections)


def patient_protocol(most_connections: int) -> type[PatientProtocol]:
    """The protocol with so many connections, or as many as the system lets this process have."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(1, min(most_connections, descriptors - SPARE))
    if most < most_connections:
        logger.warning("%d connections at most, as the system allows %d files", most, descriptors)
    return type("Protocol", (PatientProtocol,), {"most_connections": most})


class BodyTooLarge(ValueError):
    """A body beyond the limit; none of it was kept."""


async def body_of(request: Request, limit: int) -> bytes:
    """The body of a request; BodyTooLarge for more bytes, by its header before it is read, and
    TimeoutError for one that does not come within BODY_S.

    Raises ClientDisconnect where the client leaves before it is whole.
    """
    refusal = f"the body must have at most {limit} bytes"
    if (length := int(request.headers.get("content-length", 0))) > limit:
        raise BodyTooLarge(f"{refusal}, got {length}")
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                content += part
                if len(content) > limit:
                    raise BodyTooLarge(refusal)
    except TimeoutError:
        raise TimeoutError(f"the body did not come within {BODY_S:g} s") from None
    return bytes(content)


def error_body(status: int, message: str, **more: Any) -> dict[str, Any]:
    """The object that an answer of this status has for its body. more: fields of the error."""
    if len(message) > LONGEST_MESSAGE:
        message = message[:LONGEST_MESSAGE] + "..."
    plain = {"message": message, "type": ERROR_TYPES[status], "param": None, "code": status}
    return {"error": {**plain, **more}}


def refusal_of(
    status: int, message: str, headers: Mapping[str, str] | None = None, **more: Any
) -> Response:
    """The answer that is an error, in ASCII, as a message may quote half a character. more: fields
    of the error."""
    content = json.dumps(error_body(status, message, **more))
    return Response(content, status, headers, media_type="application/json")


def sent_event(chunk: dict[str, Any]) -> bytes:
    """The frame of a chunk."""
    return _DATA + json.dumps(chunk).encode() + EVENT_END
