"""The server's side of a request: what it asks for, and what its answer says it spent."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    MutableMapping,
)
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from .journal import LOOK_S, NUM_KEPT, WAIT_S, JournalError, JournalReader
from .settings import REQUEST_PREFIX, Asked

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

FIELD = "anchored"
"""The field of a request's body, of each choice of an answer, and of an answer with one choice."""

ENDPOINTS = {"/v1/completions": "cmpl-{}-{}", "/v1/chat/completions": "chatcmpl-{}"}
"""Endpoints that draw texts, with the engine's id of the text of a choice, by the request's id."""

PLAIN_ENDPOINTS = frozenset(
    {
        *("/v1/models", "/health", "/ping", "/load", "/version", "/metrics"),
        *("/tokenize", "/detokenize"),
    }
)
"""Endpoints that draw nothing. All others answer 404: nobody looked at what they tell of a pair."""

HEADER = b"x-request-id"


@dataclass(slots=True)
class Answers:
    """Spends of texts, kept from their last token to the answer, by the ids they came with."""

    journal: JournalReader
    _by_id: dict[str, dict[str, Any]] = field(default_factory=dict)

    def take(self, name: str) -> dict[str, Any] | None:
        """The figures of a text that has ended, once."""
        return self._by_id.pop(name, None)

    async def held(
        self, outputs: AsyncGenerator[Any, None], name: str, *, is_delta: bool
    ) -> AsyncIterator[Any]:
        """The outputs of a request, each after the journal has all of its tokens.

        is_delta: an output has the tokens since the last one, not all. Raises JournalError where
        the journal has others.
        """
        token_ids: list[int] = []
        try:
            async with aclosing(outputs):  # the engine stops where the client has left
                async for output in outputs:
                    (text,) = output.outputs
                    token_ids = [*(token_ids if is_delta else ()), *text.token_ids]
                    answer = await self._answer(name, token_ids)
                    if output.finished:
                        self._keep(name, answer)
                    yield output
        finally:
            self.journal.forget(name)

    def _keep(self, name: str, answer: dict[str, Any]) -> None:
        self._by_id[name] = answer
        if len(self._by_id) > NUM_KEPT:  # of clients that left before their answers
            del self._by_id[next(iter(self._by_id))]

    async def _answer(self, name: str, token_ids: list[int]) -> dict[str, Any]:
        """The figures of these tokens, once the journal holds them."""
        for _ in range(round(WAIT_S / LOOK_S)):
            try:
                return self.journal.answer(name, token_ids)
            except JournalError:
                await asyncio.sleep(LOOK_S)
        return self.journal.answer(name, token_ids)


answers: Answers | None = None
"""Those of this process's server, which makes the middleware without arguments."""


class AnsweringMiddleware:
    """Passes `anchored` of a request on to the engine, and what was spent back to the client."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif (path := scope["path"]) in ENDPOINTS:
            await self._answer(ENDPOINTS[path], scope, receive, send)
        elif path in PLAIN_ENDPOINTS:
            await self._app(scope, receive, send)
        else:
            await _refuse(send, 404, f"{path} is not served for a pair")

    async def _answer(self, form: str, scope: Message, receive: Receive, send: Send) -> None:
        try:
            body = asked_body(await _body_of(receive))
        except ValueError as error:
            await _refuse(send, 400, str(error))
            return
        name = uuid.uuid4().hex
        headers = [(key, value) for key, value in scope["headers"] if key.lower() != HEADER]
        headers = _with_length([*headers, (HEADER, name.encode())], body)

        def taken(choice: int) -> dict[str, Any] | None:
            return None if answers is None else answers.take(form.format(name, choice))

        inner = {**scope, "headers": headers}
        await self._app(inner, _replayed(body, receive), _Outgoing(send, taken))


def asked_body(body: bytes) -> bytes:
    """A request's body with its `anchored` among vLLM's extra arguments.

    Raises ValueError, in one line, for an `anchored` that asks for what is not there.
    """
    try:
        request = json.loads(body)
    except ValueError:
        return body  # vLLM says what is wrong with it
    if not isinstance(request, dict):
        return body
    if request.get("use_beam_search"):
        raise ValueError("use_beam_search cannot be honored: beams are not drawn from p*")
    asked = request.pop(FIELD, None) or {}
    extra = request.get("vllm_xargs") or {}
    if not isinstance(asked, dict) or not isinstance(extra, dict):
        raise ValueError(f"{FIELD} and vllm_xargs must be objects")
    extra = {**extra, **{REQUEST_PREFIX + name: value for name, value in asked.items()}}
    Asked.of(extra)
    return json.dumps({**request, "vllm_xargs": extra} if extra else request).encode()


class _Outgoing:
    """Sends an answer on: a JSON body whole, a stream event by event, each with what was spent."""

    def __init__(self, send: Send, taken: Callable[[int], dict[str, Any] | None]) -> None:
        self._send, self._taken = send, taken
        self._start: Message | None = None
        self._is_stream = False
        self._waiting = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
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

    async def _pass_events(self, message: Message) -> None:
        self._waiting += message.get("body", b"")
        *whole, self._waiting = self._waiting.split(b"\n\n")
        body = b"".join(self._event(event) + b"\n\n" for event in whole)
        more = message.get("more_body", False)
        if not more:
            body, self._waiting = body + self._waiting, b""
        await self._send({**message, "body": body})

    def _event(self, event: bytes) -> bytes:
        content = event.removeprefix(b"data: ")
        if content == event or not content.startswith(b"{"):
            return event
        return b"data: " + json.dumps(self._told(json.loads(content))).encode()

    async def _pass_body(self, message: Message) -> None:
        self._waiting += message.get("body", b"")
        if message.get("more_body", False):
            return
        body = self._waiting
        if body.startswith(b"{"):
            body = json.dumps(self._told(json.loads(body))).encode()
        assert self._start is not None
        headers = _with_length(self._start["headers"], body)
        await self._send({**self._start, "headers": headers})
        await self._send({**message, "body": body})

    def _told(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer, or a chunk of it, with what the texts that have ended in it spent."""
        choices = answer.get("choices") or []
        for choice in choices:
            if choice.get("finish_reason") and (spent := self._taken(choice.get("index", 0))):
                choice[FIELD] = spent
        told = [choice[FIELD] for choice in choices if FIELD in choice]
        if len(told) == len(choices) == 1:
            answer[FIELD] = told[0]
        return answer


async def _body_of(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body at once; then what the client says after it, that it has left for one."""
    pending: list[Mapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return dict(pending.pop()) if pending else await receive()

    return replayed


def _with_length(headers: Iterable[tuple[bytes, bytes]], body: bytes) -> list[tuple[bytes, bytes]]:
    """Headers of a message whose body this is."""
    kept = [pair for pair in headers if pair[0].lower() != b"content-length"]
    return [*kept, (b"content-length", str(len(body)).encode())]


async def _refuse(send: Send, status: int, message: str) -> None:
    error = {"message": message, "type": "BadRequestError", "param": None, "code": status}
    body = json.dumps({"error": error}).encode()
    headers = _with_length([(b"content-type", b"application/json")], body)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
