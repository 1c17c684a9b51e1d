"""Training runs as processes of their own, forked."""

from pathlib import Path

from forked_program import ForkedProgram, start_ranks


def start_run(config_file: Path, *, num_processes: int = 1) -> list[ForkedProgram]:
    """The processes of a run by rank, with their outputs beside the config."""
    words = ["--job.config_file", str(config_file)]
    return start_ranks("anchored.pretrain", words, config_file.with_suffix(""), num_processes)


def train(config_file: Path, *, num_processes: int = 1) -> None:
    """Run to the end; AssertionError with the output of a process that fails."""
    for program in start_run(config_file, num_processes=num_processes):
        program.wait_for_success()
