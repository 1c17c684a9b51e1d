"""Start a pretraining run as another process and wait for it."""

import subprocess
import sys
from pathlib import Path

from ..errors import AnchoredError

_STDERR = 2


def launch(config_file: Path, *, num_processes: int = 1) -> None:
    """Run anchored.pretrain on a config file, with all that it says on our stderr.

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
            process.terminate()
            process.wait()  # which saves a checkpoint first
            raise
    if status != 0:
        raise AnchoredError(f"pretraining with {config_file} failed with status {status}")
