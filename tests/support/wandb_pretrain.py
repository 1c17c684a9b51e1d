"""python -m anchored.pretrain with a Weights & Biases that only notes what it is told.

It does so in the file that WANDB_NOTES names, a JSON line a call: nothing is sent.
"""

import json
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from anchored.pretrain.cpu_device import use_cpu_without_accelerator

use_cpu_without_accelerator()

from anchored.pretrain import __main__ as program  # noqa: E402


def note(**call: object) -> None:
    with Path(os.environ["WANDB_NOTES"]).open("a") as file:
        file.write(json.dumps(call, default=str) + "\n")


class FakeWandb(ModuleType):
    run = None

    def init(self, **options: object) -> None:
        note(call="init", id=options["id"], resume=os.environ.get("WANDB_RESUME"))

    def define_metric(self, name: str, *, step_metric: str) -> None:
        note(call="define", name=name, step_metric=step_metric)

    def log(self, figures: dict[str, object], **options: object) -> None:
        note(call="log", figures=figures, options=options)


wandb = FakeWandb("wandb")
wandb.__spec__ = ModuleSpec("wandb", None)
sys.modules["wandb"] = wandb
program.main()
