"""What is run on a GPU, piece by piece: each in a process of its own, with a limit of its own."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch

from anchored import ModelPair
from anchored.kernels.projection import project_kl, project_max
from anchored.kernels.uniforms import uniforms
from anchored.tools.bench.options import Shape as ModelShape
from anchored.tools.bench.random_inputs import random_pair

from . import decoding_checks, projection_checks
from .byte_decoding import byte_timing, byte_work, first_byte_timings
from .check import DTYPES, RunCheck, Sizes
from .pair_decoding import pair_timings
from .parts import Part
from .speed import TARGET_US, kernel_timings, round_timings
from .vllm_pair import KINDS, absence, engine_timings, same_as_decoder
from .vllm_soak import short_requests

Row = dict[str, Any]
PAIR: tuple[ModelShape, ModelShape] = ("tinycomma-1.8b", "llama-8b")
PAIR_BATCH_SIZES = (1, 4, 16)
BYTE_BATCH_SIZES = (1, 4, 16)


@dataclass(frozen=True, slots=True)
class Task:
    """Rows of one part that are made together."""

    part: Part
    name: str
    limit_s: float
    run: Callable[[torch.device, Sizes], Iterator[Row]]


def tasks_of(part: Part) -> list[Task]:
    """In order of what they tell."""
    if part == "correctness":
        checks = {**projection_checks.CHECKS, **decoding_checks.CHECKS}
        return [Task(part, name, 90.0, partial(_checked, run)) for name, run in checks.items()]
    if part == "vllm":
        return _vllm_tasks()
    timed = _decode_timings() if part == "decode" else _speed_timings()
    return [
        Task(part, name, limit_s, partial(_timed, bench, timings))
        for name, limit_s, bench, timings in timed
    ]


Timed = tuple[str, float, str, Callable[[torch.device], Iterator[Any]]]
"""Name and limit of a task, the bench that its rows name, and what times it."""


def _decode_timings() -> Iterator[Timed]:
    for size in PAIR_BATCH_SIZES:
        timings = partial(_of_pair, partial(pair_timings, batch_size=size))
        yield f"8B + 1.8B at batch {size}", 170.0, "decode", timings
    first = partial(first_byte_timings, shapes=PAIR)
    yield "first byte of 8B + 1.8B", 120.0, "first byte", first


def _speed_timings() -> Iterator[Timed]:
    for size in TARGET_US:
        yield f"kernel at batch {size}", 60.0, "kernel", partial(kernel_timings, batch_size=size)
    for size in BYTE_BATCH_SIZES:
        yield f"bytes at batch {size}", 60.0, "byte", partial(byte_timing, batch_size=size)
    yield "forwards of bytes", 120.0, "byte work", byte_work
    for size in PAIR_BATCH_SIZES[:2]:
        timings = partial(_of_pair, partial(round_timings, batch_sizes=(size,)))
        yield f"drafts at batch {size}", 150.0, "drafts", timings


def _vllm_tasks() -> list[Task]:
    if reason := absence():
        return [Task("vllm", "vLLM", 60.0, partial(_not_run, reason))]
    checks = [
        Task("vllm", kind, 130.0, partial(_checked, partial(same_as_decoder, kind)))
        for kind in KINDS
    ]
    soak = Task("vllm", "short requests", 420.0, partial(_checked, short_requests))
    timed = partial(_timed, "vllm", partial(engine_timings, shapes=PAIR))
    return [*checks, soak, Task("vllm", "8B + 1.8B in vLLM", 360.0, timed)]


def task_named(part: Part, name: str) -> Task:
    """One of `tasks_of`."""
    return next(task for task in tasks_of(part) if task.name == name)


def _checked(run: RunCheck, device: torch.device, sizes: Sizes) -> Iterator[Row]:
    check = run(device, sizes)
    yield {"status": "passed" if check.passed else "failed", "detail": check.detail}


def _not_run(reason: str, device: torch.device, sizes: Sizes) -> Iterator[Row]:
    yield {"status": "not run", "detail": reason}


def _timed(
    bench: str,
    timings: Callable[[torch.device], Iterator[Any]],
    device: torch.device,
    sizes: Sizes,
) -> Iterator[Row]:
    """Rows of figures; where times mean nothing, one that says so."""
    if not sizes.is_timed:
        yield {"status": "needs a GPU"}
        return
    for row in timings(device):
        yield {"status": "measured", "bench": bench, **asdict(row)}


def _of_pair(timings: Callable[[ModelPair], Iterator[Any]], device: torch.device) -> Iterator[Any]:
    """Of a pair of random weights, made in the process that times it."""
    yield from timings(random_pair(*PAIR, dtype=torch.bfloat16, device=str(device)))


def compile_share(
    part: Part, share: int, num_shares: int, device: torch.device, sizes: Sizes
) -> int:
    """Launch every num_shares-th kernel that the part needs once; returns how many.

    What is compiled lies in Triton's cache on the disk from then on, for all processes.
    """
    num_launched = 0
    for launch in islice(_launches(part, sizes), share, None, num_shares):
        launch(device)
        num_launched += 1
    return num_launched


def _launches(part: Part, sizes: Sizes) -> Iterator[Callable[[torch.device], object]]:
    shapes, dtypes = sizes.shapes, DTYPES
    if not sizes.is_timed:  # the interpreter compiles nothing
        shapes, dtypes = shapes[:1], DTYPES[:1]
    elif part == "speed":
        shapes, dtypes = tuple((rows, shapes[-1][1]) for rows in TARGET_US), (torch.bfloat16,)
    for shape in shapes:
        for dtype in dtypes:
            for project in (project_kl, project_max):
                for has_draw in (False, True):
                    yield partial(_launch, project, shape, dtype, has_draw)


def _launch(
    project: Callable[..., object],
    shape: tuple[int, int],
    dtype: torch.dtype,
    has_draw: bool,
    device: torch.device,
) -> None:
    rows = torch.arange(shape[0])
    risky, safe = torch.randn(2, *shape, device=device).to(dtype).unbind(0)
    budget = torch.full(shape[:1], 0.1, dtype=torch.float64, device=device)
    project(
        risky,
        safe,
        budget,
        uniforms(rows, rows).to(device) if has_draw else None,
        backend="triton",
    )
