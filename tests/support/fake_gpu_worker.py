"""Processes of gpu-check whose GPU is not there; imported by name in the process itself."""

import os
import signal
import subprocess
import tempfile
import time
import warnings
from functools import partial
from multiprocessing.connection import Connection
from unittest.mock import patch

from fake_cuda import fake_cuda
from interpreted_triton import patch_once_a_launch

from anchored.decode.engine import device_batch
from anchored.decode.models import column_attention
from anchored.kernels import interval_sums
from anchored.kernels.gpu import interval_sums as launched
from anchored.tools.gpu_check import program
from anchored.tools.gpu_check.check import Sizes
from anchored.tools.gpu_check.parts import Part
from anchored.tools.gpu_check.program import run_task

patch_once_a_launch()
# The interpreter divides by zero in lanes that it discards.
warnings.filterwarnings("ignore", category=RuntimeWarning)


def run_task_on_fake(part: Part, name: str, sizes: Sizes, rows: Connection) -> None:
    """As `run_task`; steps are captured at once, and torch does what the interpreter takes long for
    where no check asks for the kernel."""
    by_torch = partial(column_attention.decode_attention, backend="torch")
    with (
        fake_cuda(num_processors=1) as device,
        patch.object(device_batch, "NUM_WARM_UPS", 1),
        patch.object(device_batch, "WAYS", (True,)),
        patch.object(device_batch.CapturedStep, "measured_ms", lambda step: 1.0),
        patch.object(column_attention, "decode_attention", by_torch),
        patch.object(launched, "launched_sums", device.as_kernel(interval_sums._defined)),
    ):
        run_task(part, name, sizes, rows)


def break_down(part: Part, name: str, sizes: Sizes, rows: Connection) -> None:
    """A worker that does what its task is called."""
    if name == "raises":
        with patch.object(program, "_rows", side_effect=RuntimeError("an illegal\naddress")):
            run_task(part, name, sizes, rows)
        return
    if name.startswith("compile"):
        start = time.monotonic()
        time.sleep(3.0)
        rows.send({"status": "passed", "detail": "", "begun": start, "done": time.monotonic()})
        rows.send(None)
        return
    rows.send({"status": "passed", "detail": f"before it {name}"})
    if name == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "litters":
        child = subprocess.Popen(["sleep", "300"])
        rows.send({"status": "passed", "child": child.pid, "folder": tempfile.mkdtemp()})
    if name == "hangs":
        time.sleep(60.0)
    rows.send(None)
