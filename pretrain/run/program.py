"""One pretraining run, as seen by one of its processes."""

import logging
import os
import sys
import threading
from pathlib import Path
from typing import IO

import torch.distributed as dist
from torchtitan.protocols.train_spec import register_train_spec

from ... import AnchoredError
from ..job_config import JobConfig
from .preflight import check_run
from .record import lock_run
from .train_spec import train_spec
from .trainer import PretrainTrainer, StopSignal

LOG_NAME = "train.log"
_OUR_LOGGERS = __name__.partition(".")[0]
logger = logging.getLogger(__name__)


def prepare(config: JobConfig) -> IO[str]:
    """Check the run and make its folder ready; in the first process, before `run` in any.

    Returns: the claim on the folder, to be kept for as long as the run lasts.
    Raises: ValueError or OSError with one line that says why the run cannot start.
    """
    claim = lock_run(Path(config.job.dump_folder))
    for remark in check_run(config, num_processes=int(os.environ["WORLD_SIZE"])):
        print(f"anchored.pretrain: {remark}", file=sys.stderr)
    return claim


def run(config: JobConfig) -> int:
    """Train to the last step, or to SIGTERM; returns the exit status, 0 in both cases.

    A run that cannot go on ends with one line and 1.
    Needs torchrun's environment variables, and `prepare` to have run in the first process.
    """
    stop_signal = StopSignal()
    _start_log(config)
    register_train_spec("tinycomma", train_spec())
    trainer = PretrainTrainer(config, stop_signal)
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
    if trainer.step < config.training.steps and os.environ["RANK"] == "0":
        print(
            f"anchored.pretrain: stopped by a signal after step {trainer.step} of "
            f"{config.training.steps}; the same command goes on from its checkpoint",
            file=sys.stderr,
        )
    return 0


def _start_log(config: JobConfig) -> None:
    # torchtitan logs through the root logger; its lines would break the progress bar.
    rank = os.environ["RANK"]
    name = LOG_NAME if rank == "0" else f"train-rank{rank}.log"
    folder = Path(config.job.dump_folder)
    folder.mkdir(parents=True, exist_ok=True)
    handlers: list[logging.Handler] = [logging.FileHandler(folder / name)]
    logging.raiseExceptions = False  # a log on a full disk loses lines, and ends nothing
    if rank == "0":
        handlers.append(_stderr_handler(is_verbose=config.job.verbose))
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", handlers=handlers
    )
    logging.captureWarnings(True)
    # TensorBoard's, on a full disk: whoever gives it the next figure is told so too.
    threading.excepthook = lambda end: logger.info("a thread ended", exc_info=end.exc_value)


def _stderr_handler(*, is_verbose: bool) -> logging.Handler:
    """Our own warnings, one line each; with `is_verbose` all that is logged."""
    handler = logging.StreamHandler(sys.stderr)
    if not is_verbose:
        handler.setLevel(logging.WARNING)
        handler.addFilter(logging.Filter(_OUR_LOGGERS))
        handler.setFormatter(logging.Formatter("anchored.pretrain: %(message)s"))
    return handler
