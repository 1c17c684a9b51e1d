"""The kernels compiled for an sm_90 GPU without one: run as a program, it prints JSON.

Every launch that decoding makes is compiled as it would be launched: by the public functions, with
the very arguments, and what is None among them, as Triton itself does.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from anchored.kernels.gpu import launch
from anchored.kernels.gpu.launch import splits_of
from anchored.kernels.gpu.warp import warped_rows
from anchored.kernels.projection import Charge

VOCAB_SIZE = 128_256
VOCAB_SIZES = 256, 257, 49_152, 151_665, 202_048
"""Bytes, bytes with an end, and vocabularies of models; two are odd."""
PROCESSORS = 132
"""Multiprocessors of an H100 or H200."""
DTYPES = torch.bfloat16, torch.float16, torch.float32
CHARGES: tuple[Charge, ...] = "mean", "worst", "drawn"

LAUNCHES: list[dict[str, Any]] = [
    *(
        {"mode": mode, "charge": charge, "dtype": dtype}
        for mode, charge, dtype in product(("keyed", "draw", "solve"), CHARGES, DTYPES)
    ),
    *(
        {"mode": "keyed", "charge": charge, "vocab_size": vocab_size}
        for charge, vocab_size in product(CHARGES, VOCAB_SIZES)
    ),
    *({"mode": "keyed", "num_rows": num_rows} for num_rows in (1, 67, 3000)),
]
"""Every variant that projections, decoding and scoring launch: nothing is drawn, by uniforms, or by
keys and positions."""

WARPS: list[dict[str, Any]] = [
    {"dtype": dtype, "num_drafts": num_drafts, "vocab_size": vocab_size}
    for dtype, num_drafts, vocab_size in product(DTYPES, (3, 0), (151_665, VOCAB_SIZE))
]

NO_DEVICE = SimpleNamespace(
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
    get_current_device=lambda: 0,
    get_current_stream=lambda device=0: 0,
    get_active_torch_device=lambda: torch.device("cpu"),
)
"""A driver that knows an sm_90 GPU by name alone: enough to compile for it."""


def kernel_of(call: Callable[[], object]) -> Any:
    """The kernel that a call launches, which is compiled in place of being run."""
    kernels: list[Any] = []
    run = JITFunction.run

    def compile_only(function: Any, *args: Any, **options: Any) -> None:
        kernels.append(run(function, *args, **options | {"warmup": True}))

    driver.set_active(NO_DEVICE)
    with (
        patch.object(JITFunction, "run", compile_only),
        patch.object(launch, "check_device", lambda device: None),
        patch.object(launch, "resident_splits", lambda n, size, _: splits_of(n, size, PROCESSORS)),
    ):
        call()
    return kernels[-1]


def compiled(
    mode: str,
    *,
    charge: Charge = "mean",
    dtype: torch.dtype = torch.bfloat16,
    num_rows: int = 4,
    vocab_size: int = VOCAB_SIZE,
) -> Any:
    """The projection kernel of one launch."""
    logits = torch.empty(num_rows, vocab_size, dtype=dtype)
    numbers = torch.empty(num_rows, 3, dtype=torch.float64)
    keys = torch.empty(num_rows, dtype=torch.int64)
    uniform, keyed = {"draw": (numbers, None), "keyed": (None, (keys, keys))}.get(
        mode, (None, None)
    )
    rows = logits, logits, numbers[:, 0], uniform, keyed
    return kernel_of(lambda: launch.project(*rows, charge=charge))


def compiled_warp(dtype: torch.dtype, *, num_drafts: int, vocab_size: int) -> Any:
    """The kernel that warps the rows of vLLM's requests."""
    index = torch.zeros(4, 1 + num_drafts, dtype=torch.int64)
    logits, seen = torch.empty(4, vocab_size + 64, dtype=dtype), torch.zeros(4, vocab_size).bool()
    slots, numbers = index[:, 0], torch.ones(4)
    arguments = logits, index, slots, index[:, 1:], seen, numbers, numbers
    return kernel_of(lambda: warped_rows(*arguments))


def usage(kernel: Any) -> dict[str, int]:
    """Registers and bytes of stack of a thread."""
    program = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        Path(cubin.name).write_bytes(kernel.asm["cubin"])
        words = [program, "--dump-resource-usage", cubin.name]
        printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    counts = dict(re.findall(r"(\w+):(\d+)", printed))
    return {"registers": int(counts["REG"]), "stack": int(counts["STACK"])}


if __name__ == "__main__":
    launches = [(compiled, values) for values in LAUNCHES]
    launches += [(compiled_warp, values) for values in WARPS]
    step = {"first": len(launches), "sample": 6, "whole": 1}[sys.argv[1]]
    print(
        json.dumps([[str(values), usage(kernel(**values))] for kernel, values in launches[::step]])
    )
