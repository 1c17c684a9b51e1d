"""What the walk kernel becomes on an sm_90 GPU, told by Triton's compiler without one.

Every variant that decoding launches is compiled as it would be launched: by the public functions,
with the very arguments, and what is None among them, through Triton's own path.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from anchored import text_tables
from anchored.kernels.accounts import empty_accounts
from anchored.kernels.gpu import launch
from anchored.kernels.gpu.sizes import splits_of
from anchored.kernels.warping import Stops, Warping

from ..options import BenchKernelCompileConfig

# B requests, G rows of each, V vocabulary.

VOCAB_SIZE = 128_256
NUM_PROCESSORS = 132
"""Multiprocessors of an H100 or H200."""

CPU = torch.device("cpu")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
MODES = ("solve", "draw", "given", "seeds", "raw", "score")
COLUMNS = ("threads", "registers", "stack", "spills", "instructions", "fp64", "MUFU", "SHFL", "BAR")
NAME_WIDTH, WIDTH = 26, 13


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A launch: what is done with which logits."""

    mode: str
    """Without accounts "solve" and "draw", a projection with and without a draw; with accounts
    "given" and "seeds", walks drawn by given numbers and by seeds, "raw", as the latter of raw
    logits with a penalty and stop tokens, and "score"."""
    is_max: bool = False
    dtype: str = "bf16"
    num_requests: int = 4
    num_positions: int = 1

    @property
    def name(self) -> str:
        divergence = "max" if self.is_max else "kl"
        sizes = f"B{self.num_requests}-G{self.num_positions}"
        return f"{self.mode}-{divergence}-{self.dtype}-{sizes}"


def variants() -> Iterator[Variant]:
    """Every variant that projections, decoding and scoring launch."""
    for mode, is_max, dtype in product(MODES, (False, True), DTYPES):
        yield Variant(mode=mode, is_max=is_max, dtype=dtype)
    for mode, num_positions in product(("seeds", "raw", "score"), (2, 5, 9)):
        yield Variant(mode=mode, num_positions=num_positions)
    for num_requests in (1, 16, 64, 67, 256, 3000):
        yield Variant(mode="raw", num_requests=num_requests)


def run(config: BenchKernelCompileConfig) -> int:
    """Print one table of the variants named, or of all; 1 if any of them does not compile.

    Raises ValueError for a name that is no variant's.
    """
    known = {variant.name: variant for variant in variants()}
    for name in config.variants:
        if name not in known:
            raise ValueError(f"there is no variant {name!r}: known are {', '.join(known)}")
    chosen = [known[name] for name in config.variants or known]
    print(
        f"The walk kernel for sm_90, V = {VOCAB_SIZE}, Triton {triton.__version__}; compiled, not"
    )
    print("run. Registers, bytes of stack and of spills of a thread; instructions of the program.")
    text_tables.print_lines([("variant", *COLUMNS)], WIDTH, name_width=NAME_WIDTH)
    num_failed = 0
    for variant in chosen:
        try:
            cells = tuple(str(count) for count in counts(compiled(variant)).values())
        except Exception as error:  # a compiler fails in ways of its own: all are told
            num_failed += 1
            cells = (f"fails: {type(error).__name__}: {str(error).strip().splitlines()[-1]}",)
        text_tables.print_lines([(variant.name, *cells)], WIDTH, name_width=NAME_WIDTH)
    return int(num_failed > 0)


class _NoDevice:
    """A driver that knows an sm_90 GPU by name alone: enough to compile for it."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return CPU


@contextmanager
def compiling() -> Iterator[list[Any]]:
    """Within it launches of kernels compile them instead; yields what was compiled."""
    kernels: list[Any] = []
    run, check = JITFunction.run, launch.check_device

    def compile_only(function: Any, *args: Any, **options: Any) -> Any:
        kernels.append(run(function, *args, **options | {"warmup": True}))
        return kernels[-1]

    driver.set_active(_NoDevice())
    JITFunction.run, launch.check_device = compile_only, lambda device: None
    try:
        yield kernels
    finally:
        JITFunction.run, launch.check_device = run, check


def compiled(variant: Variant) -> Any:
    """The kernel of one launch."""
    with compiling() as kernels:
        _launch(variant)
    return kernels[-1]


def _launch(variant: Variant) -> None:
    sizes = variant.num_requests, variant.num_positions
    num_splits = splits_of(variant.num_requests, VOCAB_SIZE, NUM_PROCESSORS)
    memory = launch.workspace(*sizes, VOCAB_SIZE, CPU, num_splits)
    logits = torch.empty(*sizes, VOCAB_SIZE, dtype=DTYPES[variant.dtype])
    numbers = torch.empty(*sizes, 3, dtype=torch.float64)
    if variant.mode in ("solve", "draw"):
        uniform = numbers[:, 0] if variant.mode == "draw" else None
        rows, budget = logits[:, 0], numbers[:, 0, 0]
        launch.project_into(memory, rows, rows, budget, uniform, is_max=variant.is_max)
        return
    keys = torch.zeros(*sizes, dtype=torch.int64)
    seeds = keys[:, 0].contiguous()
    uniform = {"given": numbers, "seeds": seeds, "raw": seeds, "score": None}[variant.mode]
    given = keys if uniform is None else keys[:, 1:].contiguous()
    ones = torch.ones(variant.num_requests)
    raw = Warping(
        temperature=ones,
        penalty=ones,
        seen=torch.empty(*sizes, VOCAB_SIZE, dtype=torch.bool),
        stops=Stops.of(range(3), VOCAB_SIZE, CPU),
    )
    launch.launch_walk(
        *(logits, logits, empty_accounts(variant.num_requests, CPU), uniform, given),
        warping=raw if variant.mode == "raw" else None,
        memory=memory,
        is_max=variant.is_max,
    )


def counts(kernel: Any) -> dict[str, int]:
    """COLUMNS of a compiled kernel."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        usage = _printed("cuobjdump", "--dump-resource-usage", cubin)
        operations = Counter(sass_operations(_printed("nvdisasm", "-c", cubin)))
    resources = {name: int(count) for name, count in re.findall(r"(\w+):(\d+)", usage)}
    of = lambda *names: sum(operations[name] for name in names)  # noqa: E731
    figures = (
        32 * kernel.metadata.num_warps,
        resources["REG"],
        resources["STACK"],
        4 * of("LDL", "STL"),
        operations.total(),
        of("DADD", "DFMA", "DMUL", "DSETP"),
        of("MUFU"),
        of("SHFL"),
        of("BAR"),
    )
    return dict(zip(COLUMNS, figures, strict=True))


def sass_operations(sass: str) -> list[str]:
    """What each instruction does, in order, without its modifiers: DFMA, LDG, BAR."""
    lines = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)", sass)
    return [str(name) for name in lines]


def _printed(program: str, *arguments: str | Path) -> str:
    path = Path(triton.__file__).parent / "backends/nvidia/bin" / program
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout
