"""One process of a pretraining run, from its config to its exit status; and a run as a process."""

import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import AnchoredError

if TYPE_CHECKING:
    from .job_config import JobConfig

# What torchrun would set for a single process; port 0 lets the system choose a free one.
_SINGLE_PROCESS = {
    **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"},
}
_PR_SET_PDEATHSIG = 1  # of Linux, <sys/prctl.h>
_STDERR = 2
logger = logging.getLogger("anchored.pretrain")


def launch(config_file: Path, *, num_processes: int = 1) -> None:
    """Run anchored.pretrain on a config file, with all that it says on our stderr, to its end.

    num_processes: 1 runs the module itself, more run it under torchrun on this machine.
    Raises: AnchoredError if it fails.
    """
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
    program = ["-m", "anchored.pretrain", "--job.config_file", str(config_file)]
    command = [sys.executable, *(torchrun if num_processes > 1 else []), *program]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=_STDERR) as process:
        try:
            status = process.wait()
        except BaseException:  # an interrupt must not leave the run alive
            process.terminate()  # and it saves a checkpoint first
            raise
    if status != 0:
        raise AnchoredError(f"pretraining with {config_file} failed with status {status}")


@contextmanager
def prepared(arguments: Sequence[str]) -> Iterator["JobConfig"]:
    """The config of a run that can work; in the context this process has its folder's lock.

    arguments: those of `load_job_config`.
    Raises: ValueError or OSError, with one line, for a run that cannot work.
    """
    if "RANK" not in os.environ:
        os.environ.update(_SINGLE_PROCESS)
    if has_torchrun() and sys.platform == "linux":
        # A torchrun that is killed must not leave processes at work that are not restarted, and
        # that hold the run's folder against the next launch.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    from .job_config import load_job_config  # takes seconds, as torchtitan does

    config = load_job_config(arguments)
    with ExitStack() as locks:
        if os.environ["RANK"] == "0":  # the others wait for it where the processes meet
            from .run.preflight import check_run  # takes seconds: a wrong config is seen before
            from .run.record import run_lock

            locks.enter_context(run_lock(Path(config.job.dump_folder)))
            for remark in check_run(config, num_processes=int(os.environ["WORLD_SIZE"])):
                print(f"anchored.pretrain: {remark}", file=sys.stderr)
        yield config


def has_torchrun() -> bool:
    """True if torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def run(config: "JobConfig") -> int:
    """Train to the last step, or to a signal; returns the exit status, 0 in both cases.

    A run that cannot go on ends with one line and 1. The first process has checked the run.
    """
    import torch.distributed as dist

    from .run.trainer import Trainer

    _start_log(config)
    trainer, failure = Trainer(config), None
    try:
        trainer.train()
    except AnchoredError as error:  # on all processes alike
        failure = error
    finally:
        trainer.close()
    dist.destroy_process_group()
    if failure is not None:
        logger.error("%s", failure)
        return 1
    if not trainer.is_done and os.environ["RANK"] == "0":
        print(
            f"anchored.pretrain: stopped by a signal after step {trainer.step} of "
            f"{config.training.steps}; the same command goes on from its checkpoint",
            file=sys.stderr,
        )
    return 0


def _start_log(config: "JobConfig") -> None:
    """Log to a file of the run; the first process shows this package's warnings on stderr too."""
    # torchtitan logs through the root logger; its lines would break the progress bar.
    rank = os.environ["RANK"]
    folder = Path(config.job.dump_folder)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ("train.log" if rank == "0" else f"train-rank{rank}.log")
    handlers: list[logging.Handler] = [logging.FileHandler(file)]
    logging.raiseExceptions = False  # a log on a full disk loses lines, and ends nothing
    if rank == "0":
        shown = logging.StreamHandler(sys.stderr)
        if not config.job.verbose:
            shown.setLevel(logging.WARNING)
            shown.addFilter(logging.Filter("anchored"))
            shown.setFormatter(logging.Formatter("anchored.pretrain: %(message)s"))
        handlers.append(shown)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        handlers=handlers,
        force=True,  # in place of those of the command line
    )
    logging.captureWarnings(True)
