"""vLLM's OpenAI server with a pair as its model: texts leave after the journal has them."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop
from vllm.entrypoints.launchers.api_server.entry import build_and_serve, build_async_engine_client
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.launchers.launcher import setup_server
from vllm.exceptions import GenerationError
from vllm.sampling_params import RequestOutputKind
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.metrics.prometheus import get_prometheus_registry

from ...errors import AnchoredError
from ..serving.asked import GREEDY, Limits, most_nats
from ..serving.batch_thread import SHUT_DOWN
from ..serving.journal_reader import NUM_KEPT, JournalReader
from ..serving.metrics import JournalMetrics
from ..serving.server import CLOSING_S
from . import front_door
from .admission import admit
from .answers import Answers
from .engine import engine_arguments, register
from .settings import EngineSettings
from .worker import EXTENSION

if TYPE_CHECKING:
    from ..serving.accounts.keeper import Keeper  # imports a database's toolkit

MIDDLEWARE = "anchored.decode.vllm.front_door.FrontDoor"
SERVED_NAME = "anchored"
KEY_VARIABLE = "VLLM_API_KEY"

OpenAccounts = Callable[[Path], AbstractContextManager["Keeper"]]


def serve(
    settings: EngineSettings, words: Sequence[str], open_accounts: OpenAccounts | None = None
) -> None:
    """Serve until a signal ends it.

    words: options of `vllm serve`, as --port 8000. open_accounts: opens the accounts of clients for
    a server with such a folder of journals, None where they have none. Raises ValueError for an
    option that cannot go with a pair, AnchoredError for a journal that is not read here; vLLM's
    parser ends the program for an option that it does not know.
    """
    register()
    arguments = server_arguments(settings, words)
    keys = keys_of(arguments)
    if keys and open_accounts is not None:
        raise ValueError(f"--accounts names the keys of its clients: no --api-key, {KEY_VARIABLE}")
    with ExitStack() as stack:
        keeper = None
        if open_accounts is not None:
            keeper = stack.enter_context(open_accounts(Path(settings.journal)))
            keys = keeper.policy.keys
        uvloop.run(_serve(settings, arguments, keys, keeper))


def server_arguments(settings: EngineSettings, words: Sequence[str]) -> Any:
    """vLLM's namespace for these options of `vllm serve`, with what a pair needs."""
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(list(words))
    for name, value in engine_arguments(settings, vars(arguments)).items():
        setattr(arguments, name, value)
    if (arguments.api_server_count or 1) > 1:
        raise ValueError("api_server_count must be 1: one process answers, and checks the journal")
    arguments.served_model_name = arguments.served_model_name or [SERVED_NAME]
    arguments.middleware = [*arguments.middleware, MIDDLEWARE]
    arguments.worker_extension_cls = EXTENSION
    validate_parsed_serve_args(arguments)
    return arguments


def keys_of(arguments: Any) -> dict[bytes, str]:
    """The digests of the keys that vLLM's server was started with, which no client has by name."""
    keys = arguments.api_key or [os.environ.get(KEY_VARIABLE)]
    return {hashlib.sha256(key.encode()).digest(): "" for key in keys if key}


async def _serve(
    settings: EngineSettings, arguments: Any, keys: Mapping[bytes, str], keeper: Keeper | None
) -> None:
    address, socket = setup_server(arguments, reuse_port=False)
    reader = JournalReader(settings.journal, skips_written=True, num_kept=NUM_KEPT)
    answers = Answers(
        reader,
        JournalMetrics(get_prometheus_registry()),
        settle=None if keeper is None else keeper.settle,
        shut_down=_shut_down,
    )
    try:
        async with build_async_engine_client(arguments) as engine:
            if not reader.refresh():
                raise AnchoredError(
                    f"the engine's journal is not in {settings.journal} here: its first process "
                    "and the server need one file system"
                )
            _hold(engine, answers, settings.limits)

            async def falls_back() -> bool:
                return any(await engine.collective_rpc("anchored_noted"))

            answers.noted = falls_back
            front_door.front = front_door.Front(
                answers=answers,
                limits=settings.limits,
                keys=keys,
                root_path=arguments.root_path or "",
                keeper=keeper,
                falls_back=falls_back,
            )
            ended = await build_and_serve(
                engine, address, socket, arguments, timeout_graceful_shutdown=CLOSING_S
            )
        await ended
    finally:
        await answers.end(0.0)
        socket.close()


def _hold(engine: Any, answers: Answers, limits: Limits) -> None:
    """Let every text of the engine wait for the journal, and the engine's end for its texts."""
    generate, shutdown, loop = engine.generate, engine.shutdown, asyncio.get_running_loop()

    def held(prompt: Any, sampling_params: Any, request_id: str, *args: Any, **kwargs: Any) -> Any:
        most = 0.0
        if answers.settle is not None:
            admitted = admit(sampling_params, limits)
            if admitted.sampling.is_greedy:
                raise ValueError(GREEDY)
            most = most_nats(admitted.rule, admitted.horizon, admitted.least_debt)
        outputs = generate(prompt, sampling_params, request_id, *args, **kwargs)
        is_delta = sampling_params.output_kind == RequestOutputKind.DELTA
        return answers.held(outputs, request_id, is_delta=is_delta, most=most)

    def ended(timeout: float | None = None) -> None:
        """vLLM's server calls it in a thread once a signal has come, and then in its loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            ending = answers.end(timeout or 0.0, engine.abort)
            asyncio.run_coroutine_threadsafe(ending, loop).result()
            timeout = 0.0  # nothing is drawn any more
        shutdown(timeout=timeout)

    engine.generate, engine.shutdown = held, ended


def _shut_down() -> Exception:
    error = GenerationError(SHUT_DOWN)
    error.status_code = HTTPStatus.SERVICE_UNAVAILABLE
    return error
