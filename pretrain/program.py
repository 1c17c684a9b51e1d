"""One process of a pretraining run, from its config to its exit status."""

import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import AnchoredError
from .cpu_device import use_cpu_without_accelerator

if TYPE_CHECKING:
    from .job_config import JobConfig

# What torchrun would set for a single process; port 0 lets the system choose a free one.
_SINGLE_PROCESS = {
    **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"},
}
_PR_SET_PDEATHSIG = 1  # of Linux, <sys/prctl.h>
logger = logging.getLogger("anchored.pretrain")


@contextmanager
def prepared(arguments: Sequence[str]) -> Iterator["JobConfig"]:
    """The config of a run that can work; this process has a claim on its folder in the context.

    arguments: those of `load_job_config`.
    Raises: ValueError or OSError, with one line, for a run that cannot work.
    """
    if "RANK" not in os.environ:
        os.environ.update(_SINGLE_PROCESS)
    if has_torchrun() and sys.platform == "linux":
        # A torchrun that is killed must not leave processes at work that are not restarted, and
        # that hold the run's folder against the next launch.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    use_cpu_without_accelerator()
    # Not before: these import torchtitan, which binds its device at that moment.
    from .job_config import load_job_config

    config = load_job_config(arguments)
    with ExitStack() as claims:
        if os.environ["RANK"] == "0":  # the others wait for it where the processes meet
            from .run.preflight import check_run  # takes seconds: a wrong config is seen before
            from .run.record import run_lock

            claims.enter_context(run_lock(Path(config.job.dump_folder)))
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
    trainer = Trainer(config)
    failure: AnchoredError | None = None
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
    # TensorBoard's, on a full disk: who gives it the next figure gets the error too.
    threading.excepthook = lambda end: logger.info("a thread ended", exc_info=end.exc_value)
