"""The endpoints of the server, as one ASGI application."""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .answers import CHATS, COMPLETIONS
from .endpoint import Endpoint, Served, refused_of
from .engine import Refused
from .http import CLIENT, ERROR_TYPES, body_of, refusal_of


class PairApp:
    """A pair's endpoints: texts by two of them, and what a server says of itself."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._created = int(time.time())
        routes = [
            Route("/v1/completions", Endpoint(COMPLETIONS, served), methods=["POST"]),
            Route("/v1/chat/completions", Endpoint(CHATS, served), methods=["POST"]),
            Route("/tokenize", partial(self._converted, served.reader.symbols), methods=["POST"]),
            Route("/detokenize", partial(self._converted, served.reader.text), methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._one_model),
            Route("/v1/anchored/account", self._account),
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/metrics", self._page),
        ]
        self.routes = Starlette(routes=routes, exception_handlers={HTTPException: _error})
        self.routes.router.redirect_slashes = False

    async def _converted(
        self, convert: Callable[[bytes], dict[str, Any]], request: HttpRequest
    ) -> Response:
        """What becomes of a body in the readers' thread."""
        served, loop = self._served, asyncio.get_running_loop()
        try:
            content = await body_of(request, served.max_body)
            async with served.reading:
                return JSONResponse(await loop.run_in_executor(served.readers, convert, content))
        except (ValueError, TimeoutError) as error:
            return _answered(refused_of(error)[1])

    async def _models(self, _: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def _one_model(self, request: HttpRequest) -> Response:
        if (name := request.path_params["name"]) != (model := self._served.model):
            raise HTTPException(404, f"there is no model {name!r} here, only {model!r}")
        return JSONResponse(self._described())

    def _described(self) -> dict[str, Any]:
        """The pair as OpenAI's clients list a model, with what decides a text and its bound."""
        decoder, limits = self._served.engine.decoder, self._served.reader.limits
        rule = {"name": decoder.rule.name, **decoder.rule.settings()}
        most = {name: getattr(limits, name) for name in ("max_k", "max_total", "max_bank")}
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
        if (refusal := self._served.engine.refusal) is not None:
            return _answered(refusal)
        return JSONResponse({"status": "up"})

    async def _ready(self, _: HttpRequest) -> Response:
        try:
            await self._served.engine.probe()
        except Refused as refused:
            return _answered(refused)
        return JSONResponse({"status": "ready"})

    async def _page(self, _: HttpRequest) -> Response:
        engine = self._served.engine
        metrics = engine.metrics
        metrics.waiting.set(engine.num_waiting)
        metrics.running.set(engine.num_running)
        metrics.fallback.set(await engine.falls_back())
        return Response(metrics.page(), media_type="text/plain; version=0.0.4")


def _answered(refused: Refused) -> Response:
    return refusal_of(refused.status, refused.reason, **refused.more)


async def _error(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code if error.status_code in ERROR_TYPES else 400
    return refusal_of(status, error.detail, error.headers)
