"""Training runs as processes of their own, forked: what torchrun starts, without its imports."""

import socket
from pathlib import Path

from forked_program import ForkedProgram


def start_run(config_file: Path, num_processes: int = 1) -> list[ForkedProgram]:
    """The processes of a run by rank, each with an output file beside the config."""
    program, words = "anchored.pretrain", ["--job.config_file", str(config_file)]
    return [
        ForkedProgram(program, words, config_file.with_suffix(f".{rank}.txt"), environment)
        for rank, environment in enumerate(_environments(num_processes))
    ]


def train(config_file: Path, *, num_processes: int = 1) -> str:
    """Run to the end; returns the first process's output. AssertionError if a process fails."""
    programs = start_run(config_file, num_processes)
    for program in programs:
        assert program.wait() == 0, program.output.read_text()
    return programs[0].output.read_text()


def _environments(num_processes: int) -> list[dict[str, str]]:
    """One of variables for each rank, as torchrun sets them; a process alone needs none."""
    if num_processes == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {
        "WORLD_SIZE": str(num_processes),
        "LOCAL_WORLD_SIZE": str(num_processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return [group | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_processes)]
