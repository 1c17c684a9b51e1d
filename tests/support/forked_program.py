"""Programs forked from a process that has imported torchtitan already: that takes six seconds."""

import multiprocessing
import os
import random
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest


class ForkedProgram:
    """python -m MODULE WORDS, in another session, without input and with its output in a file.

    environment: added to that of this process.
    """

    def __init__(
        self, module: str, words: list[str], output: Path, environment: dict[str, str] | None = None
    ) -> None:
        arguments = (module, words, output, dict(os.environ) | (environment or {}))
        self.output = output
        self._process = _server().Process(target=_run, args=arguments)
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit status, that of a signal negative; None while it runs."""
        return self._process.exitcode

    def wait(self) -> int:
        """The exit status, once it has ended."""
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def wait_until(self, is_reached: Callable[[], object]) -> None:
        """Wait, in its midst; AssertionError with the output of a program that ends before."""
        while not is_reached():
            assert self.poll() is None, self.output.read_text()
            time.sleep(0.01)

    def end_when(self, is_reached: Callable[[], object], sent: int = signal.SIGKILL) -> int:
        """The exit status, once a signal was sent to all of its processes, in their midst."""
        self.wait_until(is_reached)
        with suppress(ProcessLookupError):  # it has just ended
            os.killpg(self.pid, sent)
        return self.wait()

    def wait_for_success(self) -> str:
        """The output, once it has ended with status 0; AssertionError with it otherwise."""
        status, output = self.wait(), self.output.read_text()
        assert status == 0, output
        return output


def start_ranks(
    module: str, words: list[str], output: Path, num_processes: int
) -> list[ForkedProgram]:
    """The processes that torchrun would start, each with the output file OUTPUT.RANK.txt."""
    files = [output.with_name(f"{output.name}.{rank}.txt") for rank in range(num_processes)]
    ranks = zip(files, _rank_variables(num_processes), strict=True)
    return [ForkedProgram(module, words, file, variables) for file, variables in ranks]


def _rank_variables(num_processes: int) -> list[dict[str, str]]:
    """Variables that torchrun adds to each process's environment; a process alone needs nothing."""
    if num_processes == 1:
        return [{}]
    size = str(num_processes)
    group = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    return [group | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_processes)]


def _free_port() -> int:
    """A port that nothing listens at, of those that no program which asks for any port gets:
    another test may do so before the processes bind it."""
    while True:
        port = random.randrange(20_000, 32_768)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    preloaded = ("anchored.pretrain.run.preflight", "torch.distributed.checkpoint")
    context.set_forkserver_preload([*preloaded, "torch.utils.tensorboard"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        patch.setenv("OMP_NUM_THREADS", "1")
        forkserver.ensure_running()
    return context


def _run(module: str, words: list[str], output: Path, environment: dict[str, str]) -> None:
    os.setsid()
    # It is ignored by what a shell started in the background, the tests themselves perhaps.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tracker = resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None  # it starts one, which outlives it by little
    os.environ.clear()
    os.environ.update(environment)
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
