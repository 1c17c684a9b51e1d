"""`anchored serve --engine vllm` as a program, under Triton's interpreter on a CPU."""

import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from embedded_server import program
from waiting import HANG_S

ARGUMENTS = ("dtype=float32", "enforce_eager=true", "block_size=32", "max_num_seqs=16")
"""Of an engine that runs in Triton's interpreter."""


def server(words: list[str], log: Path) -> AbstractContextManager[tuple[str, subprocess.Popen]]:
    """(its address, its process); gone with its engine afterwards."""
    environment = {k: v for k, v in os.environ.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    command = [sys.executable, str(Path(__file__)), "serve", "--engine", "vllm"]
    arguments = ["--engine-args", *ARGUMENTS]
    return program([*words, *arguments], log, command=command, environment=environment)


def end(process: subprocess.Popen) -> None:
    """Kill the server and its engine: they are one session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(HANG_S)


if __name__ in ("__main__", "__mp_main__"):  # the server, and its engine's
    from vllm_on_cpu import interpret

    interpret()

if __name__ == "__main__":
    from anchored.tools.cli import main

    main()
