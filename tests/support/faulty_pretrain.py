"""python -m anchored.pretrain with faults: {step: fault} as JSON in FAULTS.

"nan loss", "inf grad" and "nan weight" come about on the last process alone; "kill R in start N"
kills process R by SIGKILL, in start 0 or the Nth one that torchrun makes after a crash; from "full
disk" to "room again" nothing can be written; a "long step" says so on stderr and lasts until there
is the file LONG_STEP, and any two signals in it are two.
"""

import errno
import json
import os
import signal
import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemWriter
from waiting import until

from anchored.pretrain import __main__ as program
from anchored.pretrain.run import metrics, stop_signals
from anchored.pretrain.run.trainer import Trainer

FAULTS = {int(step): fault for step, fault in json.loads(os.environ["FAULTS"]).items()}
RANK, LAST_RANK = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")) - 1
START = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
backward = Trainer.backward
is_full = False


def when_there_is_room(write: Callable[..., object]) -> Callable[..., object]:
    def written(*arguments: object) -> object:
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    return written


def faulty_backward(trainer: Trainer, *batch: object) -> Tensor:
    global is_full
    loss: Tensor = backward(trainer, *batch)
    weight, fault = next(trainer.model.parameters()), FAULTS.get(trainer.step)
    if fault == f"kill {RANK} in start {START}":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "long step":
        stop_signals.SAME_PRESS_S = 0.0
        print("long step", file=sys.stderr, flush=True)
        until(lambda: os.path.exists(os.environ.get("LONG_STEP", "")))
    elif fault in ("full disk", "room again"):
        trainer.checkpointer.wait_for_saves()  # those before have their end, however slow they are
        is_full = fault == "full disk"
    elif fault == "nan loss" and RANK == LAST_RANK:
        loss = loss * torch.nan
    elif fault == "inf grad" and RANK == LAST_RANK:
        weight.grad.fill_(torch.inf)
    elif fault == "nan weight" and RANK == LAST_RANK:
        weight.data.fill_(torch.nan)
    return loss


FileSystemWriter.write_data = when_there_is_room(FileSystemWriter.write_data)
metrics.sync = when_there_is_room(metrics.sync)
Trainer.backward = faulty_backward
program.main()
