"""An endpoint that draws texts: from a request's body to its answer, whole or as a stream."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.types import Receive, Scope, Send

from ..engine.request import Request
from .anchored_options import AVAILABLE, most_nats
from .answers import Answer, Form, LogProbTexts, TextSoFar
from .body import Body, parsed
from .engine import Engine, Job, Refused, Update
from .http import (
    CLIENT,
    DONE,
    REQUEST_ID,
    BodyTooLarge,
    body_of,
    error_body,
    refusal_of,
    sent_event,
)
from .reading import Reader

if TYPE_CHECKING:
    from .accounts.keeper import Keeper  # imports a database's toolkit

RETRY: Final = {"retry-after": "1"}
"""Seconds after which a full queue may have room, a few steps, or an account's nats come back."""

NO_RETRY: Final = {"x-should-retry": "false"}
"""OpenAI's clients ask twice more for what is 429 or above 499, unless they are told not to."""


UNBUFFERED: Final = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
"""Headers of a stream, for proxies."""

REASONS: Final = {
    **{400: "bad_request", 404: "model", 408: "too_slow", 413: "body_too_large"},
    **{429: "queue", 500: "broken", 503: "shutting_down"},
}
"""Words of metrics for requests that are not taken, by status."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """A pair as it is served: what all endpoints of its server share."""

    engine: Engine
    reader: Reader
    readers: Executor
    """Has one thread, in which bodies are read and prompts become tokens while streams go on."""
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while one body is read: others wait unread, as an object takes 40 times its bytes."""
    texts: LogProbTexts
    model: str
    max_body: int
    """Bytes of a request's body at most."""
    keeper: Keeper | None = None
    """Keeps the clients' accounts, where they have some."""


class Endpoint:
    """An ASGI application that answers with texts of one form."""

    def __init__(self, form: Form, served: Served) -> None:
        self._form, self._served = form, served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        request = HttpRequest(scope, receive)
        send_refusal = partial(_send_refusal, scope, receive, send)
        try:
            content = await body_of(request, self._served.max_body)
            answer, requests = await self._read(content, client := scope.get(CLIENT, ""))
            client_id = request.headers.get(REQUEST_ID, "")
            jobs = await self._begun(answer, requests, client_id, client)
        except ClientDisconnect:
            return
        except (ValueError, TimeoutError, Refused) as error:
            reason, refused = refused_of(error)
        else:
            await self._send_answer(_Talk(answer, jobs, send, send_refusal), receive)
            return
        self._served.engine.metrics.refusals.labels(reason).inc()
        await send_refusal(refused)

    async def _send_answer(self, talk: _Talk, receive: Receive) -> None:
        """Answer, until the client leaves; what is not drawn by then is cancelled."""
        tasks = [asyncio.ensure_future(call) for call in (talk.answer(), _left(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            self._served.engine.cancel(talk.open_jobs)

    async def _read(self, content: bytes, client: str) -> tuple[Answer, list[Request]]:
        """The answer to a body, and the texts that it has.

        client: the name of who asks, where clients have accounts. Raises ValueError for what cannot
        be decoded, Refused for another model.
        """
        served, keeper, available = self._served, self._served.keeper, 0.0
        in_thread = partial(asyncio.get_running_loop().run_in_executor, served.readers)
        answer_id = f"{self._form.prefix}-{uuid.uuid4().hex}"
        async with served.reading:
            body = await in_thread(lambda: Body.of(parsed(content)))
            if body.model not in (None, served.model):
                raise Refused(404, f"there is no model {body.model!r} here, only {served.model!r}")
            if body.anchored.K == AVAILABLE and keeper is not None:
                available = await keeper.available(client, body.anchored.group)
            read = served.reader.requests
            requests = await in_thread(read, body, self._form, answer_id, available)
        answer = Answer(self._form, answer_id, served.model, body, served.texts, requests[0])
        return answer, requests

    async def _begun(
        self, answer: Answer, requests: Sequence[Request], client_id: str, client: str
    ) -> list[Job]:
        """The texts that are drawn, whose bounds are reserved; Refused where there is no room, or
        for nats that are used up."""
        engine, keeper, options = self._served.engine, self._served.keeper, answer.body.anchored
        updates: asyncio.Queue[tuple[Job, Update]] = asyncio.Queue()
        jobs = [
            Job(
                request=request,
                request_id=self._form.name(answer.answer_id, place),
                updates=updates,
                client_id=client_id,
                place=place,
                settle=None if keeper is None else keeper.settle,
            )
            for place, request in enumerate(requests)
        ]
        engine.check(jobs)
        # Last of all: whatever would refuse the request has been looked at.
        if keeper is not None:
            bounds = {job.request_id: most_nats(job.request) for job in jobs}
            rule = requests[0].rule
            assert rule is not None
            await keeper.reserve(client, options.group, bounds, rule)
        try:
            engine.submit(jobs)
        except Refused:  # the queue was filled meanwhile
            for job in jobs:
                job.end()
            raise
        return jobs


def refused_of(error: Exception) -> tuple[str, Refused]:
    """The word of metrics for what a request raised, and its refusal."""
    if isinstance(error, Refused):
        return "account" if error.more else REASONS[error.status], error
    kinds = {BodyTooLarge: 413, TimeoutError: 408, ValueError: 400}
    status = next(status for kind, status in kinds.items() if isinstance(error, kind))
    return REASONS[status], Refused(status, str(error))


async def _send_refusal(scope: Scope, receive: Receive, send: Send, refused: Refused) -> None:
    headers = RETRY if refused.may_pass else NO_RETRY
    response = refusal_of(refused.status, refused.reason, headers, **refused.more)
    await response(scope, receive, send)


async def _left(receive: Receive) -> None:
    """Until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class _Talk:
    """One answer, sent as updates of its texts come."""

    def __init__(
        self,
        answer: Answer,
        jobs: Sequence[Job],
        send: Send,
        send_refusal: Callable[[Refused], Awaitable[None]],
    ) -> None:
        self.open_jobs = list(jobs)
        """The jobs whose last update has not come."""
        self._answer, self._send, self._send_refusal = answer, send, send_refusal
        self._updates = jobs[0].updates
        self._texts = [TextSoFar(job) for job in jobs]

    async def answer(self) -> None:
        """Answer whole, or as a stream."""
        await (self._stream() if self._answer.body.stream else self._whole())

    async def _whole(self) -> None:
        """Answer once all texts have ended."""
        async for updates in self._news():
            for job, update in updates:
                self._note(job, update)
                if update.refused is not None:
                    await self._send_refusal(update.refused)
                    return
        body = json.dumps(self._answer.whole(self._texts)).encode()
        await self._begin(b"application/json", (b"content-length", str(len(body)).encode()))
        await self._body(body, more=False)

    async def _stream(self) -> None:
        """Send pieces as they are drawn; an error after the first is the stream's last event."""
        has_begun = False
        async for updates in self._news():
            events = [event for news in updates for event in self._events(*news)]
            refused = next((u.refused for _, u in updates if u.refused is not None), None)
            if not has_begun:
                if refused is not None:
                    await self._send_refusal(refused)
                    return
                await self._begin(b"text/event-stream; charset=utf-8", *UNBUFFERED)
                has_begun = True
            if refused is not None:
                events.append(sent_event(error_body(refused.status, refused.reason)))
            if events:
                await self._body(b"".join(events), more=refused is None)
            if refused is not None:
                return
        usage = self._answer.counted(self._texts)
        await self._body((sent_event(usage) if usage else b"") + DONE, more=False)

    async def _news(self) -> AsyncIterator[list[tuple[Job, Update]]]:
        """Updates, as many as have come, until each text has had its last one."""
        while self.open_jobs:
            updates = [await self._updates.get()]
            while not self._updates.empty():
                updates.append(self._updates.get_nowait())
            yield updates

    def _note(self, job: Job, update: Update) -> TextSoFar:
        text = self._texts[job.place]
        text.pieces.append(update.text)
        text.token_ids += update.token_ids
        text.log_probs += update.log_probs
        text.prompt_log_probs += update.prompt_log_probs
        if update.is_last:
            text.ledger, text.error = update.ledger, update.error
            self.open_jobs.remove(job)
        return text

    def _events(self, job: Job, update: Update) -> list[bytes]:
        text, answer, chunks = self._note(job, update), self._answer, []
        if answer.form.is_chat and len(text.token_ids) == len(update.token_ids):
            chunks.append(answer.begun(job.place))
        if update.ledger is not None:
            chunks.append(answer.last(text, update))
        elif update.text or (update.token_ids and answer.shows_tokens):
            chunks.append(answer.piece(text, update))
        so_far = answer.usage_so_far(self._texts)
        return [sent_event({**chunk, **so_far}) for chunk in chunks]

    async def _begin(self, content_type: bytes, *more: tuple[bytes, bytes]) -> None:
        headers = [(b"content-type", content_type), *more]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _body(self, body: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
