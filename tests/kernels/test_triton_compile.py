"""The kernels compile for an H200 without one, with the registers of a resident program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import compiled_projections
import pytest

MAX_REGISTERS = 255
"""With them eight programs of a warp fit a multiprocessor."""

MAX_STACK = 64
"""Bytes: at most 16 spilled registers. Triton 3.6 spills none, 3.9 six where rows draw."""

MAX_ODD_STACK = 512
"""Rows of an odd number of tokens begin anywhere, so each token is read by itself."""

ONE_FOR_EVERY_BATCH = """
from compiled_projections import compiled
kernels = [compiled("keyed", num_rows=num_rows) for num_rows in (2, 3, 33, 60)]
print(len({kernel.hash for kernel in kernels}))
"""


def printed(*arguments) -> str:
    """By a program without the interpreter."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_DEFAULT_FP_FUSION"] = "1"
    support = str(Path(compiled_projections.__file__).parent)
    environment["PYTHONPATH"] = f"{support}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    result = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize(
    "launches",
    [
        "first",
        pytest.param("sample", marks=pytest.mark.slow),
        pytest.param("whole", marks=[pytest.mark.slow, pytest.mark.whole]),
    ],
)
def test_launches_compile_for_sm_90_nearly_without_spills(launches):
    usages = json.loads(printed(compiled_projections.__file__, launches))
    assert len(usages) >= {"first": 1, "sample": 8, "whole": 40}[launches]
    for name, usage in usages:
        assert usage["registers"] <= MAX_REGISTERS, (name, usage)
        is_odd = "257" in name or "151665" in name
        assert usage["stack"] <= (MAX_ODD_STACK if is_odd else MAX_STACK), (name, usage)


@pytest.mark.slow
def test_one_compilation_serves_every_batch():
    assert printed("-c", ONE_FOR_EVERY_BATCH) == "1\n"
