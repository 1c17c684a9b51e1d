"""The kernels compile for an H200 without one, with the registers of a resident program."""

import os
import subprocess
import sys

import pytest

OTHER_KERNEL = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from anchored.kernels.gpu.interval_sums import interval_log_sums_kernel

def type_of(name):
    if name in ("shifts_ptr", "sums_ptr"): return "*fp64"
    if name in ("rows_ptr", "low_ptr", "high_ptr"): return "*i32"
    return "*fp32" if name.endswith("_ptr") else "i32"

for kernel in (interval_log_sums_kernel,):
    types = {name: type_of(name) for name in kernel.arg_names if name != "BLOCK_SIZE"}
    types |= {"BLOCK_SIZE": "constexpr"}
    source = ASTSource(kernel, signature=types, constexprs={"BLOCK_SIZE": 1024})
    triton.compile(source, target=GPUTarget("cuda", 90, 32))
"""

WALKS = """
from anchored.tools.bench.kernel.kernel_compile import Variant, compiled
kernels = [
    compiled(Variant(mode="raw", num_requests=num_requests, num_positions=num_positions))
    for num_requests in (2, 3, 4, 8, 16, 33, 60)
    for num_positions in (1, 2, 5, 16)
]
print(len({kernel.hash for kernel in kernels}))
"""

MAX_REGISTERS = 255
"""With them eight programs of a warp fit a multiprocessor."""

MAX_STACK = 64
"""Bytes: at most 16 spilled registers. Triton 3.6 spills none, 3.9 six where walks draw."""


def without_interpreter(*arguments):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_DEFAULT_FP_FUSION"] = "1"
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True
    )


@pytest.mark.slow
def test_every_launch_compiles_for_sm_90_nearly_without_spills():
    result = without_interpreter("-m", "anchored.tools.cli", "bench", "kernel-compile")
    assert result.returncode == 0, result.stdout + result.stderr
    _, _, titles, *lines = (line.split() for line in result.stdout.splitlines())
    assert len(lines) > 40
    for line in lines:
        figures = dict(zip(titles, line, strict=True))
        assert int(figures["registers"]) <= MAX_REGISTERS, line
        assert int(figures["stack"]) <= MAX_STACK, line


@pytest.mark.slow
def test_one_compilation_serves_every_batch_and_draft_length():
    result = without_interpreter("-c", WALKS)
    assert result.stdout == "1\n", result.stderr


@pytest.mark.slow
def test_the_other_kernel_compiles_for_sm_90():
    result = without_interpreter("-c", OTHER_KERNEL)
    assert result.returncode == 0, result.stderr


def test_on_the_cpu_triton_needs_its_interpreter():
    program = (
        "import torch; from anchored.kernels.projection import project_kl\n"
        "x = torch.zeros(1, 3)\n"
        "try: project_kl(x, x, torch.ones(1), backend='triton')\n"
        "except ValueError as error: print(error)"
    )
    result = without_interpreter("-c", program)
    assert "Triton kernels need CUDA tensors, or TRITON_INTERPRET=1" in result.stdout
