"""The kernels compile for an H200 without one, within the registers of a resident program."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from anchored.kernels.gpu import walk_kernel
from anchored.kernels.gpu.interval_sums import interval_log_sums_kernel
from anchored.kernels.gpu.warping import _warp_kernel

target = GPUTarget("cuda", 90, 32)

def types(kernel, constants):
    wide = {"facts_ptr", "walks_ptr", "records_ptr", "table_ptr", "budget_ptr", "account_ptr",
            "uniform_ptr", "shifts_ptr", "sums_ptr"}
    long = {"seeds_ptr", "given_ptr", "tokens_ptr", "counters_ptr"}
    logits = {"risky_ptr", "safe_ptr"}
    short = {"rows_ptr", "low_ptr", "high_ptr"}
    def of(name):
        if name in constants: return "constexpr"
        if name in wide: return "*fp64"
        if name in long: return "*i64"
        if name in short: return "*i32"
        if name in logits: return "*bf16"
        if name in ("flags_ptr", "seen_ptr"): return "*u8"
        return "*fp32" if name.endswith("_ptr") else "i32"
    return {name: of(name) for name in kernel.arg_names}

def compiled(kernel, num_warps, **constants):
    source = ASTSource(kernel, signature=types(kernel, constants), constexprs=constants)
    options = {"num_warps": num_warps, "launch_cooperative_grid": True, "enable_fp_fusion": True}
    return triton.compile(source, target=target, options=options)

def walk(num_warps, **constants):
    strides = {"risky_stride": 1, "safe_stride": 1}  # as the launcher specialises them
    constants = {"PHASE": 0, "HAS_ACCOUNT": True, "HAS_SEEDS": True} | strides | constants
    return compiled(walk_kernel.walk_kernel, num_warps, **constants)

kernels = [
    walk(8, MODE=1, IS_MAX=False, BLOCK_SIZE=1024, NUM_SLOTS=128, NUM_SPLITS=126),
    walk(8, MODE=2, IS_MAX=True, BLOCK_SIZE=1024, NUM_SLOTS=128, NUM_SPLITS=8),
    walk(4, MODE=1, IS_MAX=False, BLOCK_SIZE=512, NUM_SLOTS=2, NUM_SPLITS=1),
    compiled(_warp_kernel, 4, BLOCK_SIZE=1024),
    compiled(interval_log_sums_kernel, 4, BLOCK_SIZE=1024),
]
for number, kernel in enumerate(kernels):
    open(f"{sys.argv[1]}/{number}.cubin", "wb").write(kernel.asm["cubin"])
print(len(kernels))
"""


def without_interpreter(*arguments):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_DEFAULT_FP_FUSION"] = "1"
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True
    )


def resource_usage(cubin):
    """What cuobjdump says of a compiled kernel: {"REG": 216, "STACK": 0, ...}."""
    import triton

    program = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    result = subprocess.run(
        [program, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True
    )
    return {name: int(count) for name, count in re.findall(r"(\w+):(\d+)", result.stdout)}


@pytest.mark.slow
def test_kernels_compile_for_sm_90_nearly_without_spills(tmp_path):
    result = without_interpreter("-c", PROGRAM, str(tmp_path))
    assert result.returncode == 0, result.stderr
    for number in range(int(result.stdout)):
        usage = resource_usage(tmp_path / f"{number}.cubin")
        assert usage["REG"] <= 255
        assert usage["STACK"] <= 64  # bytes: at most 16 spilled registers
        assert usage["LOCAL"] == 0


def test_on_the_cpu_triton_needs_its_interpreter():
    program = (
        "import torch; from anchored.kernels.projection import project_kl\n"
        "x = torch.zeros(1, 3)\n"
        "try: project_kl(x, x, torch.ones(1), backend='triton')\n"
        "except ValueError as error: print(error)"
    )
    result = without_interpreter("-c", program)
    assert "Triton kernels need CUDA tensors, or TRITON_INTERPRET=1" in result.stdout
