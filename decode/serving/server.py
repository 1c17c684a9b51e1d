"""The server of a pair: its endpoints, its engine, its port and its end."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...errors import AnchoredError
from .anchored_options import Limits
from .answers import CHATS, COMPLETIONS, LogProbTexts
from .endpoint import Endpoint, Served, refused_of
from .engine import SHUT_DOWN, Engine, Refused
from .http import (
    CLIENT,
    ERROR_TYPES,
    Guard,
    body_of,
    patient_protocol,
    read_keys,
    refusal_of,
)
from .reading import Reader
from .server_options import ServerOptions

if TYPE_CHECKING:
    from .accounts.keeper import Keeper  # imports a database's toolkit

logger = logging.getLogger(__name__)

CLOSING_S: Final = 5
"""Seconds that connections have to take what was sent, after the last text has ended."""

IDLE_S: Final = 65
"""Seconds that a connection may be idle: longer than clients and proxies keep theirs, 5 to 60, one
of which would else send a request into a connection that is just being closed."""


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
        handlers = {HTTPException: _error, Refused: _error}
        self.routes = Starlette(routes=routes, exception_handlers=handlers)
        self.routes.router.redirect_slashes = False

    async def _converted(
        self, convert: Callable[[bytes], dict[str, Any]], request: HttpRequest
    ) -> Response:
        """Answer with a body converted, in the readers' thread."""
        served, loop = self._served, asyncio.get_running_loop()
        try:
            content = await body_of(request, served.max_body)
            return JSONResponse(await loop.run_in_executor(served.readers, convert, content))
        except (ValueError, TimeoutError) as error:
            raise refused_of(error)[1] from error

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
        return JSONResponse(await keeper.figures(request.scope[CLIENT]))

    async def _health(self, _: HttpRequest) -> Response:
        if (refusal := self._served.engine.refusal) is not None:
            raise refusal
        return JSONResponse({"status": "up"})

    async def _ready(self, _: HttpRequest) -> Response:
        await self._served.engine.probe()
        return JSONResponse({"status": "ready"})

    async def _page(self, _: HttpRequest) -> Response:
        engine = self._served.engine
        metrics = engine.metrics
        metrics.waiting.set(engine.num_waiting)
        metrics.running.set(engine.num_running)
        metrics.fallback.set(await engine.falls_back())
        return Response(metrics.page(), media_type="text/plain; version=0.0.4")


async def _error(_: HttpRequest, error: Exception) -> Response:
    if isinstance(error, Refused):
        return refusal_of(error.status, error.reason, **error.more)
    assert isinstance(error, HTTPException)
    status = error.status_code if error.status_code in ERROR_TYPES else 400
    return refusal_of(status, error.detail, error.headers)


@contextmanager
def bound_socket(options: ServerOptions) -> Iterator[socket.socket]:
    """A socket at the address; before models are loaded, OSError for one that is in use."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    # On sockets of this protocol alone asyncio sends small parts at once: else the end of an answer
    # would wait 40 ms until the client has confirmed its beginning.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((options.host, options.port))
        except OSError as error:
            where = f"{options.host}:{options.port}"
            raise OSError(f"cannot listen on {where}: {error.strerror}") from None
        yield bound


class PairServer:
    """One server, from its first draw to its last answer."""

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        options: ServerOptions,
        keeper: "Keeper | None" = None,
    ) -> None:
        """Raises ValueError for keys that cannot be read, and for accounts that a rule without
        bounds would charge."""
        decoder = engine.decoder
        if keeper is not None and not decoder.open_rule.is_certified:
            raise ValueError(f"accounts need a rule with a bound: {decoder.rule.name} has none")
        self._options, self.engine, self._keeper = options, engine, keeper
        self._readers = ThreadPoolExecutor(1, thread_name_prefix="anchored-reader")
        reader = Reader(
            decoder,
            limits,
            engine.max_length,
            None if keeper is None else keeper.secret,
            exposes=options.expose_logprobs,
            chat_length=None if keeper is None else options.chat_length,
        )
        served = Served(
            engine=engine,
            reader=reader,
            texts=LogProbTexts(decoder.level),
            readers=self._readers,
            model=options.served_name,
            max_body=options.max_body,
            keeper=keeper,
        )
        config = uvicorn.Config(
            _guarded(served, options),
            http=patient_protocol(options.max_connections),
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=CLOSING_S,
        )
        self._http = _HttpServer(config, self.end)
        self._until_s = float("inf")
        """When texts end that are still decoded, by `time.monotonic`."""
        self._draining: asyncio.Task[None] | None = None

    async def run(self, bound: socket.socket) -> None:
        """Serve; returns once all has ended."""
        self._loop = asyncio.get_running_loop()
        following = None if self._keeper is None else asyncio.create_task(self._keeper.follow())
        try:
            await self.engine.start(self._close)
            host, port = bound.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            name = self._options.served_name
            print(f"{name} is served at http://{shown}:{port}/v1; Ctrl-C ends it", flush=True)
            await self._http.serve(sockets=[bound])
        except Refused as refused:
            raise AnchoredError(f"no row could be drawn: {refused.reason}") from refused
        finally:
            await self.engine.stop()
            self._readers.shutdown()
            if following is not None:
                following.cancel()
        if (failure := self.engine.failure) is not None:
            raise AnchoredError(f"the server has ended: {failure}") from failure

    def end(self) -> None:
        """Stop as SIGTERM does: texts go on for a while; a second call ends them at once."""
        self._loop.call_soon_threadsafe(self._begin_to_end)

    def _begin_to_end(self) -> None:
        if self._draining is not None:
            self._until_s = time.monotonic()
            return
        self._until_s = time.monotonic() + self._options.shutdown_s
        self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        engine = self.engine
        engine.refuse_new(Refused(503, SHUT_DOWN))
        while engine.num_running + engine.num_waiting and time.monotonic() < self._until_s:
            await asyncio.sleep(0.02)
        await engine.stop()
        self._close()

    def _close(self) -> None:
        self._http.should_exit = True


def _guarded(served: Served, options: ServerOptions) -> Any:
    """The endpoints after the checks of hosts, keys and origins, as one ASGI application."""
    keeper = served.keeper
    keys = read_keys(options.api_key_file) if options.api_key_file else {}
    guard = Guard(
        PairApp(served).routes,
        served.engine.metrics,
        keys_now=lambda: keys if keeper is None else keeper.keys,
        hosts=options.hosts,
        root_path=options.root_path,
    )
    if not options.allowed_origin:
        return guard
    return CORSMiddleware(
        guard,
        allow_origins=options.allowed_origin,
        allow_methods=("GET", "POST"),
        allow_headers=("authorization", "content-type", "x-request-id"),
    )


class _HttpServer(uvicorn.Server):
    """Leaves signals to its owner, as connections are still to be answered after one."""

    def __init__(self, config: uvicorn.Config, signalled: Callable[[], None]) -> None:
        super().__init__(config)
        self._signalled = signalled

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal that ends programs."""
        self._signalled()
