"""Programs forked from a process that has imported torchtitan already: that takes six seconds."""

import multiprocessing
import os
import runpy
import sys
from functools import cache
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest


class ForkedProgram:
    """python -m MODULE WORDS, in a session of its own, without input and with its output in a file.

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


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["training_imports"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        patch.setenv("OMP_NUM_THREADS", "1")
        forkserver.ensure_running()
    return context


def _run(module: str, words: list[str], output: Path, environment: dict[str, str]) -> None:
    os.setsid()
    tracker = resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None  # it starts one of its own, which outlives it by little
    os.environ.update(environment)
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
