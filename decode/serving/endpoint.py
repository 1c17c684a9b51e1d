"""An endpoint that draws texts: from a request's body to its answer, whole or as a stream."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from .anchored_options import AVAILABLE, client_id_of, most_nats
from .answers import Answer, Form, LogProbTexts, TextSoFar
from .engine import Engine, Job, Refused, Update
from .http import (
    CLIENT,
    DONE,
    REQUEST_ID,
    BodyTooLarge,
    ClientGone,
    Message,
    Receive,
    Send,
    body_of,
    error_body,
    header_of,
    refuse,
    sent_event,
    with_length,
)
from .reading import Reader

if TYPE_CHECKING:
    from .accounts.keeper import Keeper  # imports a database's toolkit

Returned = TypeVar("Returned")

RETRY: Final = [(b"retry-after", b"1")]
"""Seconds after which a full queue may have room, a few steps, or an account's nats come back."""

NO_RETRY: Final = [(b"x-should-retry", b"false")]
"""OpenAI's clients ask twice more for what is 429 or above 499, unless they are told not to."""


REASONS: Final = {404: "model", 429: "queue", 500: "broken", 503: "shutting_down"}
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

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        try:
            client_id = client_id_of(header_of(scope, REQUEST_ID))
            content = await body_of(scope, receive, self._served.max_body)
            answer, jobs = await self._read(content, client_id, scope.get(CLIENT, ""))
            self._submit(jobs)
        except ClientGone:
            return
        except BodyTooLarge as error:
            await self._refuse(send, "body_too_large", Refused(413, str(error)))
        except TimeoutError as error:
            await self._refuse(send, "too_slow", Refused(408, str(error)))
        except ValueError as error:
            await self._refuse(send, "bad_request", Refused(400, str(error)))
        except Refused as refused:
            reason = "account" if refused.more else REASONS[refused.status]
            await self._refuse(send, reason, refused)
        else:
            talk = _Talk(answer, jobs, send)
            is_stream = answer.body.stream
            answered = asyncio.ensure_future(talk.stream() if is_stream else talk.whole())
            left = asyncio.ensure_future(_left(receive))
            try:
                await asyncio.wait({answered, left}, return_when=asyncio.FIRST_COMPLETED)
                if answered.done():
                    answered.result()
            finally:
                for task in (answered, left):
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task
                self._served.engine.cancel(talk.open_jobs)

    async def _read(self, content: bytes, client_id: str, client: str) -> tuple[Answer, list[Job]]:
        """The answer to a body, and its texts, whose bounds are reserved.

        client: the name of who asks, where clients have accounts. Raises ValueError for what cannot
        be decoded, Refused for another model and for nats that are used up.
        """
        served, keeper, available = self._served, self._served.keeper, 0.0
        answer_id = f"{self._form.prefix}-{uuid.uuid4().hex}"
        async with served.reading:
            body = await self._in_thread(served.reader.body, content)
            if body.model not in (None, served.model):
                raise Refused(404, f"there is no model {body.model!r} here, only {served.model!r}")
            if body.anchored.K == AVAILABLE and keeper is not None:
                available = await keeper.available(client, body.anchored.group)
            read = served.reader.requests
            requests = await self._in_thread(read, body, self._form, answer_id, available)
        updates: asyncio.Queue[tuple[Job, Update]] = asyncio.Queue()
        jobs = [
            Job(
                request=request,
                request_id=self._form.name(answer_id, place),
                updates=updates,
                client_id=client_id or body.anchored.client_id,
                place=place,
                settle=None if keeper is None else keeper.settle,
            )
            for place, request in enumerate(requests)
        ]
        # Last of all: whatever would refuse the request has been looked at.
        served.engine.check(jobs)
        if keeper is not None:
            bounds = {job.request_id: most_nats(job.request) for job in jobs}
            rule = requests[0].rule
            assert rule is not None
            await keeper.reserve(client, body.anchored.group, bounds, rule)
        has_log_probs = requests[0].num_top is not None
        answer = Answer(
            form=self._form,
            answer_id=answer_id,
            model=served.model,
            body=body,
            texts=served.texts,
            has_log_probs=has_log_probs,
            exposes=has_log_probs and requests[0].exposes,
        )
        return answer, jobs

    async def _in_thread(self, call: Callable[..., Returned], *args: Any) -> Returned:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._served.readers, call, *args)

    def _submit(self, jobs: list[Job]) -> None:
        """Queue the jobs; Refused where there is no room, with nothing reserved any more."""
        try:
            self._served.engine.submit(jobs)
        except Refused:
            for job in jobs:
                job.end()
            raise

    async def _refuse(self, send: Send, reason: str, refused: Refused) -> None:
        self._served.engine.metrics.refusals.labels(reason).inc()
        await _answer(send, refused)


async def _answer(send: Send, refused: Refused) -> None:
    headers = RETRY if refused.may_pass else NO_RETRY
    await refuse(send, refused.status, refused.reason, headers, **refused.more)


async def _left(receive: Receive) -> None:
    """Until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


class _Talk:
    """One answer, sent as updates of its texts come."""

    def __init__(self, answer: Answer, jobs: Sequence[Job], send: Send) -> None:
        self.open_jobs = list(jobs)
        """The jobs whose last update has not come."""
        self._answer, self._send = answer, send
        self._updates = jobs[0].updates
        self._texts = [
            TextSoFar(job.place, job.request.prompt_token_ids, job.request_id) for job in jobs
        ]

    async def whole(self) -> None:
        """Answer once all texts have ended."""
        async for updates in self._news():
            if (refused := _refusal(updates)) is not None:
                await _answer(self._send, refused)
                return
        body = json.dumps(self._answer.whole(self._texts)).encode()
        headers = with_length([(b"content-type", b"application/json")], body)
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def stream(self) -> None:
        """Send pieces as they are drawn; an error after the first is the stream's last event."""
        has_begun = False
        async for updates in self._news():
            refused = _refusal(updates)
            if not has_begun and refused is not None:
                await _answer(self._send, refused)
                return
            if not has_begun:
                await self._begin()
            has_begun = True
            events = [*self._events(updates)]
            if refused is not None:
                events.append(sent_event(error_body(refused.status, refused.reason)))
            if events:
                await self._body(b"".join(events), more=refused is None)
            if refused is not None:
                return
        usage = self._answer.counted(self._texts)
        await self._body((sent_event(usage) if usage else b"") + DONE, more=False)

    async def _news(self) -> AsyncIterator[dict[Job, Update]]:
        """Updates by job, as many as have come, until each text has had its last one."""
        while self.open_jobs:
            new = [await self._updates.get()]
            while not self._updates.empty():
                new.append(self._updates.get_nowait())
            merged: dict[Job, Update] = {}
            for job, update in new:
                merged[job] = _joined(merged[job], update) if job in merged else update
            for job, update in merged.items():
                self._note(job, update)
            yield merged

    def _note(self, job: Job, update: Update) -> None:
        text = self._texts[job.place]
        text.pieces.append(update.text)
        text.token_ids += update.token_ids
        text.log_probs += update.log_probs
        text.prompt_log_probs += update.prompt_log_probs
        if update.is_last:
            text.ledger, text.error = update.ledger, update.error
            self.open_jobs.remove(job)

    def _events(self, updates: dict[Job, Update]) -> list[bytes]:
        chunks = []
        for job, update in updates.items():
            answer, text = self._answer, self._texts[job.place]
            if answer.form.is_chat and len(text.token_ids) == len(update.token_ids):
                chunks.append(answer.begun(job.place))
            if update.ledger is not None:
                chunks.append(answer.last(text, update))
            elif update.text or (update.token_ids and answer.shows_tokens):
                chunks.append(answer.piece(text, update))
        so_far = self._answer.usage_so_far(self._texts)
        return [sent_event({**chunk, **so_far}) for chunk in chunks]

    async def _begin(self) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _body(self, body: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def _refusal(updates: dict[Job, Update]) -> Refused | None:
    return next((each.refused for each in updates.values() if each.refused is not None), None)


def _joined(first: Update, then: Update) -> Update:
    """Two updates of one text as one."""
    return Update(
        text=first.text + then.text,
        token_ids=[*first.token_ids, *then.token_ids],
        log_probs=[*first.log_probs, *then.log_probs],
        prompt_log_probs=first.prompt_log_probs,
        ledger=then.ledger,
        error=then.error,
        refused=then.refused,
    )
