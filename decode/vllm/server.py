"""vLLM's OpenAI server with a pair as its model: texts leave after the journal has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import uvloop
from vllm.entrypoints.launchers.api_server.entry import build_and_serve, build_async_engine_client
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.entrypoints.launchers.launcher import setup_server
from vllm.sampling_params import RequestOutputKind
from vllm.utils.argparse_utils import FlexibleArgumentParser

from . import answers
from .engine import engine_arguments, register
from .journal import NUM_KEPT, JournalReader
from .settings import EngineSettings

MIDDLEWARE = "anchored.decode.vllm.answers.AnsweringMiddleware"
SERVED_NAME = "anchored"


def serve(settings: EngineSettings, words: Sequence[str]) -> None:
    """Serve until a signal ends it.

    words: options of `vllm serve`, as --port 8000. Raises ValueError for one that cannot go with a
    pair; vLLM's parser ends the program for one that it does not know.
    """
    register()
    uvloop.run(_serve(settings, server_arguments(settings, words)))


def server_arguments(settings: EngineSettings, words: Sequence[str]) -> Any:
    """vLLM's namespace for these options of `vllm serve`, with what a pair needs."""
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(list(words))
    for name, value in engine_arguments(settings, vars(arguments)).items():
        setattr(arguments, name, value)
    if (arguments.api_server_count or 1) > 1:
        raise ValueError("api_server_count must be 1: one process answers, and checks the journal")
    arguments.served_model_name = arguments.served_model_name or [SERVED_NAME]
    arguments.middleware = [*arguments.middleware, MIDDLEWARE]
    validate_parsed_serve_args(arguments)
    return arguments


async def _serve(settings: EngineSettings, arguments: Any) -> None:
    address, socket = setup_server(arguments, reuse_port=False)
    reader = JournalReader(settings.journal, skips_written=True, num_kept=NUM_KEPT)
    answers.answers = answers.Answers(reader)
    try:
        async with build_async_engine_client(arguments) as engine:
            _hold(engine, answers.answers)
            ended = await build_and_serve(engine, address, socket, arguments)
        await ended
    finally:
        socket.close()


def _hold(engine: Any, kept: answers.Answers) -> None:
    """Let every text of the engine wait for the journal."""
    generate = engine.generate

    def held(prompt: Any, sampling_params: Any, request_id: str, *args: Any, **kwargs: Any) -> Any:
        outputs = generate(prompt, sampling_params, request_id, *args, **kwargs)
        is_delta = sampling_params.output_kind == RequestOutputKind.DELTA
        return kept.held(outputs, request_id, is_delta=is_delta)

    engine.generate = held
