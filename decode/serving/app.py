"""The endpoints of the embedded server, as one ASGI application."""

import asyncio
import time
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...kernels.project import falls_back
from ..arguments import request_list
from ..rules.rule import takes_passage
from .answers import CHATS, COMPLETIONS
from .asgi import ERROR_TYPES, error_body
from .endpoint import Endpoint, Served
from .guard import CLIENT
from .jobs import Job, Refused, Update

PROBE: Final = "The"
"""The prompt of a draw that shows the server is ready: one token or three bytes."""

PROBE_S: Final = 30.0
"""Seconds that such a draw may take, as probes of orchestrators wait no longer."""

BUSY_S: Final = 10.0
"""A step that ended within so many seconds shows the same, while all rows are taken."""


class PairApp:
    """A pair's endpoints: texts by two of them, and what a server says of itself."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._created = int(time.time())
        self._probe_lock = asyncio.Lock()
        routes = [
            Route("/v1/completions", Endpoint(COMPLETIONS, served), methods=["POST"]),
            Route("/v1/chat/completions", Endpoint(CHATS, served), methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._one_model),
            Route("/v1/anchored/account", self._account),
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/metrics", self._page),
        ]
        self.routes = Starlette(routes=routes, exception_handlers={HTTPException: _error})

    async def _models(self, _: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def _one_model(self, request: HttpRequest) -> Response:
        if (name := request.path_params["name"]) != (model := self._served.model):
            raise HTTPException(404, f"there is no model {name!r} here, only {model!r}")
        return JSONResponse(self._described())

    def _described(self) -> dict[str, Any]:
        """The pair as OpenAI's clients list a model, with what decides a text and its bound."""
        decoder, limits = self._served.batch.decoder, self._served.reader.limits
        most = {name: getattr(limits, name) for name in ("max_k", "max_total", "max_bank")}
        rule = {"name": decoder.rule.name, **decoder.rule.settings()}
        pair = {
            "level": decoder.level.name,
            "rule": {name: value for name, value in rule.items() if value is not None},
            "certified": decoder.open_rule.is_certified,
            "fingerprints": dict(decoder.pair.fingerprints),
            **{name: value for name, value in most.items() if value is not None},
        }
        return {
            "id": self._served.model,
            "object": "model",
            "created": self._created,
            "owned_by": "anchored",
            "max_model_len": self._served.reader.max_length,
            "anchored": pair,
        }

    async def _account(self, request: HttpRequest) -> Response:
        if (keeper := self._served.keeper) is None:
            raise HTTPException(404, "no accounts are kept here")
        try:
            return JSONResponse(await keeper.figures(request.scope[CLIENT]))
        except Refused as refused:
            return _answered(refused)

    async def _health(self, _: HttpRequest) -> Response:
        if (refusal := self._served.batch.refusal) is not None:
            return _answered(refusal)
        return JSONResponse({"status": "up"})

    async def _ready(self, _: HttpRequest) -> Response:
        try:
            await self.draw_one()
        except Refused as refused:
            return _answered(refused)
        return JSONResponse({"status": "ready"})

    async def draw_one(self) -> None:
        """Draw one row that no ledger has, unless others are being drawn; Refused where that does
        not come."""
        batch = self._served.batch
        if (refusal := batch.refusal) is not None:
            raise refusal
        if batch.num_running and time.monotonic() - batch.last_step_s < BUSY_S:
            return
        async with self._probe_lock:
            updates: asyncio.Queue[tuple[Job, Update]] = asyncio.Queue()
            rule = batch.decoder.open_rule
            passage = PROBE if takes_passage(rule) else None
            (request,) = request_list(
                batch.decoder.level, rule, PROBE, 1, passages=passage, is_alone=True
            )
            job = Job(request=request, request_id="ready", updates=updates, is_recorded=False)
            batch.submit([job])
            try:
                async with asyncio.timeout(PROBE_S):
                    _, update = await updates.get()
            except TimeoutError:
                raise Refused(503, f"no row was drawn within {PROBE_S:g} s") from None
            finally:
                batch.cancel([job])
        if update.refused is not None:
            raise update.refused
        if update.error:
            raise Refused(503, update.error)

    async def _page(self, _: HttpRequest) -> Response:
        self._served.metrics.waiting.set(self._served.batch.num_waiting)
        self._served.metrics.running.set(self._served.batch.num_running)
        self._served.metrics.fallback.set(falls_back())
        return Response(self._served.metrics.page(), media_type="text/plain; version=0.0.4")


def _answered(refused: Refused) -> Response:
    body = error_body(refused.status, refused.reason, **refused.more)
    return JSONResponse(body, refused.status)


async def _error(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code if error.status_code in ERROR_TYPES else 400
    return JSONResponse(error_body(status, error.detail), status, headers=error.headers)
