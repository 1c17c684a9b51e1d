"""The server, in a thread of the tests or in a process that signals reach."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Semaphore, Thread

import httpx
import pytest
from replaced_llm import replaced_engine
from waiting import HANG_S, until

from anchored import AnchoredError, Decoder, ModelPair
from anchored.decode.serving.anchored_options import Limits
from anchored.decode.serving.batch_thread import BatchThread
from anchored.decode.serving.engine import Engine
from anchored.decode.serving.journal import JournalWriter
from anchored.decode.serving.server import PairServer, bound_socket
from anchored.decode.serving.server_options import ServerOptions


def batch_engine(decoder: Decoder, journal: Path, **sizes: int) -> Engine:
    return BatchThread(decoder, JournalWriter(journal), **sizes)


ENGINES = {"decoder": batch_engine, "vllm": replaced_engine}
"""What opens each engine of `anchored serve`; vLLM is replaced here by a Decoder."""


@contextmanager
def embedded(
    decoder: Decoder,
    journal: Path,
    *,
    limits: Limits | None = None,
    keeper=None,
    engine: str = "decoder",
    **options,
) -> Iterator[tuple[str, PairServer]]:
    """(its address, the server), until the block ends."""
    settings = ServerOptions(port=0, **{"shutdown_s": 5.0, **options})
    sizes = {"max_length": settings.max_length, "max_waiting": settings.max_waiting}
    opened = ENGINES[engine](decoder, journal, **sizes)
    server = PairServer(opened, limits or Limits(rule=decoder.rule), settings, keeper)
    with bound_socket(settings) as bound:

        def run() -> None:
            with suppress(AnchoredError):  # which the server's engine keeps
                asyncio.run(server.run(bound))

        thread = Thread(target=run)
        thread.start()
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        try:
            until(lambda: not thread.is_alive() or is_up(address))
            assert thread.is_alive(), "the server has ended"
            yield address, server
        finally:
            with suppress(RuntimeError):  # its loop may have ended
                server.end()
            thread.join(HANG_S)
            assert not thread.is_alive()


@contextmanager
def held(num_steps: int = 0) -> Iterator[Semaphore]:
    """After so many steps no text goes on, but by one for each release, until the block ends."""
    steps, may_go_on = JournalWriter.steps, Semaphore(num_steps)

    def waiting(journal, rows):
        if rows:
            may_go_on.acquire()
        steps(journal, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JournalWriter, "steps", waiting)
        try:
            yield may_go_on
        finally:
            may_go_on.release(10_000)


@contextmanager
def program(
    words: list[str],
    log: Path,
    *,
    command: Sequence[str] = (sys.executable, "-m", "anchored", "serve"),
    environment: Mapping[str, str] = os.environ,
) -> Iterator[tuple[str, subprocess.Popen]]:
    """(its address, its process) of `anchored serve`; killed at the end if it still runs."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--port", "0", *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    try:
        until(lambda: process.poll() is not None or announced(log))
        address = announced(log)
        until(lambda: process.poll() is not None or is_up(address))
        assert process.poll() is None, "the server has ended"
        yield address, process
    except BaseException:
        print(log.read_text()[-5000:])  # of a test that has failed
        raise
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(HANG_S)


def saved(pair: ModelPair, root: Path) -> tuple[Path, Path]:
    """The folders of a pair's models, each with the tokenizer."""
    for name, model in pair.models.items():
        model.save_pretrained(root / name)
        pair.tokenizer.save_pretrained(root / name)
    return root / "safe", root / "risky"


def announced(log: Path) -> str:
    """The address that a server's log says, "" for none yet."""
    lines = [line for line in log.read_text().splitlines(True) if "is served at " in line]
    return lines[0].partition(" at ")[2].partition("/v1;")[0] if lines else ""


def is_up(address: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{address}/health", timeout=HANG_S).is_success
    return False


def streamed(address: str, headers: Mapping[str, str] | None = None, **body):
    """The stream of a long text's tokens, as a context."""
    long = {"prompt": "the keeper", "max_tokens": 900, "seed": 1}
    body = {**long, "stream": True, "return_token_ids": True, **body}
    url = f"{address}/v1/completions"
    return httpx.stream("POST", url, json=body, headers=headers, timeout=HANG_S)


def posted(address: str, path: str = "/v1/completions", **body) -> httpx.Response:
    """The answer to a request, with a seed unless it names one."""
    return httpx.post(f"{address}{path}", json={"seed": 1, **body}, timeout=HANG_S)
