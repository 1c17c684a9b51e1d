"""The way of a request to vLLM's server, and of its answer back: keys, accounts and figures."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..serving.asgi import (
    REQUEST_ID,
    App,
    BodyTooLarge,
    ClientGone,
    Message,
    Receive,
    Send,
    body_of,
    header_of,
    refuse,
    replayed,
    with_length,
)
from ..serving.asked import (
    EXTRA_FIELD,
    FIELD,
    REQUEST_PREFIX,
    Asked,
    Limits,
    client_id_of,
    extra_arguments,
)
from ..serving.batch_thread import SHUT_DOWN
from ..serving.events import EVENT_END, chunk_of, sent_event
from ..serving.figures import figures_at_the_top
from ..serving.guard import CLIENT, Guard
from ..serving.jobs import Refused
from ..serving.reading import parsed
from ..serving.request_fields import check_sizes
from .answers import Answers
from .charging import Wish, charge, num_texts

if TYPE_CHECKING:
    from ..serving.accounts.keeper import Keeper  # imports a database's toolkit

ENDPOINTS = {"/v1/completions": "cmpl-{}-{}", "/v1/chat/completions": "chatcmpl-{}"}
"""Endpoints that draw texts, with the engine's id of the text of a choice, by the request's id."""

COMPLETIONS: Final = "/v1/completions"
ACCOUNT: Final = "/v1/anchored/account"
METRICS: Final = "/metrics"

ENDING = re.compile(rb'"finish_reason": ?"')
"""Matches events in which a text ends. Others go on unread: a text has its quotes escaped."""

PLAIN_ENDPOINTS = frozenset(
    {
        *("/v1/models", "/health", "/ping", "/load", "/version", METRICS),
        *("/tokenize", "/detokenize"),
    }
)
"""Endpoints that draw nothing. All others answer 404: they may say more of a pair."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Front:
    """The parts of a server that all of its requests share."""

    answers: Answers
    limits: Limits
    keys: Mapping[bytes, str]
    """Names of clients by the digests of their keys, none for a server without keys."""
    root_path: str = ""
    keeper: Keeper | None = None
    """Keeps the clients' accounts, where they have some."""
    falls_back: Callable[[], Awaitable[bool]] | None = None
    """Whether the CPU's solver draws in the engine for an accelerator."""


front: Front | None = None
"""The front of this process's server, for the middleware, which is made without arguments."""


class FrontDoor:
    """Middleware: lets in who has a key, passes `anchored` of a request on to the engine, and what
    was spent back to the client."""

    def __init__(self, app: App) -> None:
        assert front is not None, "the server has made no front"
        self._app, self._front = app, front
        metrics, root_path = front.answers.metrics, front.root_path
        self._guard = Guard(self._inner, metrics, keys=front.keys, hosts=(), root_path=root_path)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        await self._guard(scope, receive, send)

    async def _inner(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif path in ENDPOINTS and scope["method"] == "POST":
            with self._front.answers.request():
                await self._answer(ENDPOINTS[path], scope, receive, send)
        elif path in (ACCOUNT, METRICS) and scope["method"] not in ("GET", "HEAD"):
            # A browser asks for OPTIONS without a key, which vLLM's metrics take for GET.
            await refuse(send, 405, f"{path} is read with GET", [(b"allow", b"GET, HEAD")])
        elif path == ACCOUNT and self._front.keeper is not None:
            await self._account(self._front.keeper, scope, send)
        elif path in ENDPOINTS or path in PLAIN_ENDPOINTS:
            if path == METRICS and self._front.falls_back is not None:
                self._front.answers.metrics.fallback.set(await self._front.falls_back())
            await self._app(scope, receive, send)
        else:
            await refuse(send, 404, f"{path} is not served for a pair")

    async def _account(self, keeper: Keeper, scope: Message, send: Send) -> None:
        try:
            figures = await keeper.figures(scope[CLIENT])
        except Refused as refused:
            await refuse(send, refused.status, refused.reason, **refused.more)
            return
        body = json.dumps(figures).encode()
        headers = with_length([(b"content-type", b"application/json")], body)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _answer(self, form: str, scope: Message, receive: Receive, send: Send) -> None:
        answers, name = self._front.answers, uuid.uuid4().hex
        try:
            if answers.is_ending:
                raise Refused(503, SHUT_DOWN)
            client_id = client_id_of(header_of(scope, REQUEST_ID))
            values = parsed(await body_of(scope, receive))
            body, bounds = await self._asked(values, form, name, client_id, scope)
        except ClientGone:
            return
        except BodyTooLarge as error:
            await self._refuse(send, "body_too_large", Refused(413, str(error)))
            return
        except ValueError as error:
            await self._refuse(send, "bad_request", Refused(400, str(error)))
            return
        except Refused as refused:
            reason = "account" if refused.more else "shutting_down"
            await self._refuse(send, reason, refused)
            return
        headers = [(key, value) for key, value in scope["headers"] if key.lower() != REQUEST_ID]
        headers = with_length([*headers, (REQUEST_ID, name.encode())], body)

        def taken(choice: int) -> dict[str, Any] | None:
            return answers.take(form.format(name, choice))

        inner = {**scope, "headers": headers}
        answers.reserve(bounds)
        try:
            outgoing = _Outgoing(send, taken, client_id)
            await self._app(inner, replayed(body, receive), outgoing)
        finally:
            answers.release(bounds)

    async def _refuse(self, send: Send, reason: str, refused: Refused) -> None:
        self._front.answers.metrics.refusals.labels(reason).inc()
        await refuse(send, refused.status, refused.reason, **refused.more)

    async def _asked(
        self, values: dict[str, Any], form: str, name: str, client_id: str, scope: Message
    ) -> tuple[bytes, dict[str, float]]:
        """A request's body with its `anchored` among vLLM's extra arguments, and the bounds of its
        texts, by their ids, which are reserved; none where clients have no accounts.

        Raises ValueError, in one line, for what cannot be honored, and Refused for nats that are
        used up.
        """
        check_sizes(values)
        if values.get("use_beam_search"):
            raise ValueError("use_beam_search cannot be honored: beams are not drawn from p*")
        extra, bounds = extra_arguments(values), dict[str, float]()
        changes: dict[str, Any] = {"client_id": client_id} if client_id else {}
        if (keeper := self._front.keeper) is not None:
            is_chat = scope["path"] != COMPLETIONS
            names = [form.format(name, place) for place in range(num_texts(values, is_chat))]
            wish = Wish(values, Asked.of(extra), names, is_chat)
            charged, bounds = await charge(keeper, self._front.limits, scope[CLIENT], wish)
            changes |= charged
        extra |= {REQUEST_PREFIX + name: value for name, value in changes.items()}
        extra = {name: value for name, value in extra.items() if value is not None}
        values.pop(FIELD, None)
        return json.dumps({**values, EXTRA_FIELD: extra} if extra else values).encode(), bounds


class _Outgoing:
    """Sends an answer on: a JSON body whole, a stream event by event, each with what was spent."""

    def __init__(
        self, send: Send, taken: Callable[[int], dict[str, Any] | None], client_id: str
    ) -> None:
        self._send, self._taken, self._client_id = send, taken, client_id
        self._start: Message | None = None
        self._is_stream = False
        self._waiting = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": self._named(message["headers"])}
            kind = dict(message["headers"]).get(b"content-type", b"")
            self._is_stream = kind.startswith(b"text/event-stream")
            self._start = None if self._is_stream else message
            if self._is_stream:
                await self._send(message)
        elif message["type"] != "http.response.body":
            await self._send(message)
        elif self._is_stream:
            await self._pass_events(message)
        else:
            await self._pass_body(message)

    def _named(self, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Headers with the id by which the client names its request, in place of the engine's."""
        kept = [(key, value) for key, value in headers if key.lower() != REQUEST_ID]
        return [*kept, (REQUEST_ID, self._client_id.encode())] if self._client_id else kept

    async def _pass_events(self, message: Message) -> None:
        self._waiting += message.get("body", b"")
        *whole, self._waiting = self._waiting.split(EVENT_END)
        body = b"".join(self._event(event + EVENT_END) for event in whole)
        more = message.get("more_body", False)
        if not more:
            body, self._waiting = body + self._waiting, b""
        await self._send({**message, "body": body})

    def _event(self, event: bytes) -> bytes:
        chunk = chunk_of(event) if ENDING.search(event) else None
        return event if chunk is None else sent_event(self._with_spends(chunk))

    async def _pass_body(self, message: Message) -> None:
        self._waiting += message.get("body", b"")
        if message.get("more_body", False):
            return
        body = self._waiting
        if body.startswith(b"{"):
            body = json.dumps(self._with_spends(json.loads(body))).encode()
        assert self._start is not None
        headers = with_length(self._start["headers"], body)
        await self._send({**self._start, "headers": headers})
        await self._send({**message, "body": body})

    def _with_spends(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer, or a chunk of it, with what the texts that have ended in it spent."""
        choices = answer.get("choices") or []
        for choice in choices:
            if choice.get("finish_reason") and (spent := self._taken(choice.get("index", 0))):
                choice[FIELD] = spent
        return figures_at_the_top(answer, choices)
