"""`anchored vllm serve` in a process of its own, under Triton's interpreter on a CPU."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 600  # a machine that is at other work takes minutes


@contextmanager
def server(words: list[str], log: Path) -> Iterator[tuple[str, subprocess.Popen]]:
    """(its address, its process); gone with its engine afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = [sys.executable, str(Path(__file__)), "vllm", "serve", *words]
    environment = {k: v for k, v in os.environ.items() if k != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*program, "--host", "127.0.0.1", "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until_healthy(address, process, log)
        yield address, process
    finally:
        end(process)


def wait_until_healthy(address: str, process: subprocess.Popen, log: Path) -> None:
    for _ in range(START_S):
        if process.poll() is not None:
            raise RuntimeError(log.read_text()[-3000:])
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5)
            return
        except OSError:
            time.sleep(1)
    raise RuntimeError(f"no server after {START_S} s: {log.read_text()[-3000:]}")


def end(process: subprocess.Popen) -> None:
    """Kill the server and its engine: they are one session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait(60)


if __name__ in ("__main__", "__mp_main__"):  # the server's own process, and its engine's
    from vllm_on_cpu import interpret

    interpret()

if __name__ == "__main__":
    from anchored.tools.cli import main

    main()
