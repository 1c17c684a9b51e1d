"""The kernels compile for an H200 without one, with the registers of a resident program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import compiled_projections
import pytest

BATCHES = """
from compiled_projections import compiled
kernels = [compiled("keyed", num_rows=num_rows) for num_rows in (2, 3, 4, 8, 16, 33, 60)]
print(len({kernel.hash for kernel in kernels}))
"""

MAX_REGISTERS = 255
"""With them eight programs of a warp fit a multiprocessor."""

MAX_STACK = 64
"""Bytes: at most 16 spilled registers. Triton 3.6 spills none, 3.9 six where rows draw."""

MAX_ODD_STACK = 512
"""Rows of an odd number of tokens begin anywhere, so each token is read by itself."""


def without_interpreter(*arguments):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_DEFAULT_FP_FUSION"] = "1"
    environment["PYTHONPATH"] = str(Path(compiled_projections.__file__).parent)
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True
    )


@pytest.mark.slow
def test_every_launch_compiles_for_sm_90_nearly_without_spills():
    result = without_interpreter(compiled_projections.__file__)
    assert result.returncode == 0, result.stderr
    usages = json.loads(result.stdout)
    assert len(usages) > 20
    for name, usage in usages:
        assert usage["registers"] <= MAX_REGISTERS, (name, usage)
        is_odd = "257" in name or "151665" in name
        assert usage["stack"] <= (MAX_ODD_STACK if is_odd else MAX_STACK), (name, usage)


@pytest.mark.slow
def test_one_compilation_serves_every_batch():
    result = without_interpreter("-c", BATCHES)
    assert result.stdout == "1\n", result.stderr


@pytest.mark.slow
def test_on_the_cpu_triton_needs_its_interpreter():
    program = (
        "import torch; from anchored.kernels.project import project_kl\n"
        "x = torch.zeros(1, 3)\n"
        "try: project_kl(x, x, torch.ones(1), backend='triton')\n"
        "except ValueError as error: print(error)"
    )
    result = without_interpreter("-c", program)
    assert "Triton kernels need CUDA tensors, or TRITON_INTERPRET=1" in result.stdout
