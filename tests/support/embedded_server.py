"""The server, in a thread of the tests or in a process that signals reach."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from stand_in_llm import stand_in_engine
from waiting import HANG_S

from anchored import Decoder
from anchored.decode.serving.asked import Limits
from anchored.decode.serving.batch_thread import BatchThread
from anchored.decode.serving.engine import Engine
from anchored.decode.serving.journal import JournalWriter
from anchored.decode.serving.server import PairServer, bound_socket
from anchored.decode.serving.server_options import ServerOptions

LOG_SHOWN = 5000
"""Characters of the end of a server's log that are shown with a failure."""

PROGRAM = (sys.executable, "-m", "anchored", "serve")


def batch_engine(decoder: Decoder, journal: Path, **sizes: int) -> Engine:
    return BatchThread(decoder, JournalWriter(journal), **sizes)


ENGINES = {"decoder": batch_engine, "vllm": stand_in_engine}
"""What opens each engine of `anchored serve`; that of vLLM draws by a stand-in here."""


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
    opened = ENGINES[engine](
        decoder, journal, max_length=settings.max_length, max_waiting=settings.max_waiting
    )
    server = PairServer(opened, limits or Limits(rule=decoder.rule), settings, keeper)
    failures: list[BaseException] = []
    with bound_socket(settings) as bound:

        def run() -> None:
            try:
                asyncio.run(server.run(bound))
            except BaseException as error:
                failures.append(error)

        thread = Thread(target=run)
        thread.start()
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        try:
            wait_until_healthy(address, lambda: thread.is_alive(), lambda: repr(failures))
            yield address, server
        finally:
            if thread.is_alive():
                with suppress(RuntimeError):  # its loop may just have ended
                    server.end()
            thread.join(HANG_S)
            assert not thread.is_alive()


@contextmanager
def slowed(server: PairServer) -> Iterator[None]:
    """A text of 900 tokens lasts 45 seconds at least, whatever else the machine is at."""
    step = server.engine._step

    def slow():
        time.sleep(0.05)
        return step()

    server.engine._step = slow
    yield
    server.engine._step = step


@contextmanager
def held(server: PairServer) -> Iterator[Event]:
    """No text goes on until the event is set, or the block ends."""
    step, may_go_on = server.engine._step, Event()

    def waiting():
        may_go_on.wait()
        return step()

    server.engine._step = waiting
    try:
        yield may_go_on
    finally:
        may_go_on.set()
        server.engine._step = step


@contextmanager
def program(
    words: list[str],
    log: Path,
    *,
    command: Sequence[str] = PROGRAM,
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
        address = _address(process, log)
        wait_until_healthy(address, lambda: process.poll() is None, log.read_text)
        yield address, process
    except BaseException:
        print(log.read_text()[-LOG_SHOWN:])  # of a test that has failed
        raise
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(HANG_S)


def _address(process: subprocess.Popen, log: Path) -> str:
    until = time.monotonic() + HANG_S
    while time.monotonic() < until and process.poll() is None:
        announcements = [line for line in log.read_text().splitlines() if "is served at " in line]
        if announcements:
            return announcements[0].partition(" at ")[2].partition("/v1;")[0]
        time.sleep(0.05)
    raise RuntimeError(log.read_text()[-LOG_SHOWN:])


def wait_until_healthy(address: str, is_alive, explain) -> None:
    until = time.monotonic() + HANG_S
    while time.monotonic() < until and is_alive():
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5)
            return
        except OSError:
            time.sleep(0.02)
    raise RuntimeError(f"no server at {address}: {explain()}")
