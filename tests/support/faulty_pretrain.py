"""python -m anchored.pretrain with faults, once each: {step: fault} as JSON in FAULTS.

"nan loss", "inf grad" and "nan weight" come about on the last process alone, "kill R" kills process
R by SIGKILL; from "full disk" to "room again" nothing can be written. With FAULTS_DONE, a folder, a
fault happens once over all starts of a run.
"""

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from anchored.pretrain.cpu_device import use_cpu_without_accelerator

use_cpu_without_accelerator()

from torch.distributed.checkpoint import FileSystemWriter  # noqa: E402

from anchored.pretrain import __main__ as program  # noqa: E402
from anchored.pretrain.run.metrics import StepLog  # noqa: E402
from anchored.pretrain.run.trainer import Trainer  # noqa: E402

FAULTS = {int(step): fault for step, fault in json.loads(os.environ["FAULTS"]).items()}
RANK, LAST_RANK = os.environ.get("RANK", "0"), int(os.environ.get("WORLD_SIZE", "1")) - 1
backward = Trainer._backward


def is_new(step: int) -> bool:
    """Whether this fault has not happened in an earlier start."""
    if "FAULTS_DONE" not in os.environ:
        return True
    try:
        Path(os.environ["FAULTS_DONE"], f"{step}-{RANK}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def when_there_is_room(write: Callable[..., object]) -> Callable[..., object]:
    def written(*arguments: object) -> object:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    return written


is_full = False
FileSystemWriter.write_data = when_there_is_room(FileSystemWriter.write_data)
StepLog._write = when_there_is_room(StepLog._write)


def faulty_backward(trainer: Trainer, *batch: object) -> Tensor:
    loss: Tensor = backward(trainer, *batch)
    fault = FAULTS.get(trainer.step, "")
    if fault == f"kill {RANK}" and is_new(trainer.step):
        os.kill(os.getpid(), signal.SIGKILL)
    if fault in ("full disk", "room again"):
        global is_full
        is_full = fault == "full disk"
    elif int(RANK) == LAST_RANK and fault and not fault.startswith("kill"):
        weight = next(trainer.model.parameters())
        with torch.no_grad():
            if fault == "nan loss":
                loss = loss * torch.nan
            elif fault == "inf grad":
                weight.grad.fill_(torch.inf)
            else:
                assert fault == "nan weight"
                weight.fill_(torch.nan)
    return loss


Trainer._backward = faulty_backward
program.main()
