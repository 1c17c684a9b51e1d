"""Launches of the projection kernel, and the memory that they write."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..projection import Charge, Projection
from . import layout as at
from .kernel import projection_kernel
from .kl import NUM_COLUMNS, TABLE_SIZE

# B rows, V vocabulary, N blocks of it.

MAX_REGISTERS = 255
"""Registers of a thread. Without it the compiler keeps some variants to 168 and spills."""

MAX_BLOCK_SIZE = 1024
"""Tokens of one block: 126 blocks at V = 128,256, as many as an H200 has multiprocessors."""

MAX_VOCAB_SIZE = 2**18
"""Tokens for which `statistics.ROUNDING` bounds the rounding of a sum."""

MIN_BLOCK_SIZE = 32
VECTOR_BYTES = 16
"""Bytes that a lane reads at once."""

PROGRAMS_PER_PROCESSOR = 8
"""Programs, of one warp each, that a multiprocessor holds with whatever registers: two for each of
its schedulers. More would repeat what all programs of a row compute alike."""


def block_size(vocab_size: int) -> int:
    """Tokens of one block; it depends on the vocabulary alone, and so does every sum."""
    return min(MAX_BLOCK_SIZE, max(MIN_BLOCK_SIZE, int(triton.next_power_of_2(vocab_size))))


def step_size(*logits: Tensor) -> int:
    """Tokens of a block that a program reads at once: a vector for each lane."""
    step = at.NUM_LANES.value * VECTOR_BYTES // max(x.element_size() for x in logits)
    return int(min(step, *(block_size(x.shape[-1]) for x in logits)))


def num_blocks(vocab_size: int) -> int:
    """Blocks of a row."""
    return -(-vocab_size // block_size(vocab_size))


def splits_of(num_rows: int, vocab_size: int, num_processors: int) -> int:
    """Programs a row so that one wave fills a device of so many multiprocessors."""
    return min(num_blocks(vocab_size), max(1, PROGRAMS_PER_PROCESSOR * num_processors // num_rows))


def resident_splits(num_rows: int, vocab_size: int, device: torch.device) -> int:
    """Programs a row so that one wave fills the device: all are resident, as barriers need.

    1 in the interpreter, which runs programs one after another: none may wait for a later one.
    """
    if device.type != "cuda" or is_interpreted():
        return 1
    num_processors = torch.cuda.get_device_properties(device).multi_processor_count
    return splits_of(num_rows, vocab_size, num_processors)


def is_interpreted() -> bool:
    """True in Triton's interpreter: TRITON_INTERPRET was 1 when triton was imported."""
    return not isinstance(projection_kernel, triton.JITFunction)


def check_device(device: torch.device) -> None:
    """Raise ValueError where Triton cannot run: on the CPU, unless it is interpreted."""
    if device.type != "cuda" and not is_interpreted():
        raise ValueError(
            "Triton kernels need CUDA tensors, or TRITON_INTERPRET=1 set before triton is "
            f"imported; got tensors on {device}"
        )


def project(
    risky_logits: Tensor,
    safe_logits: Tensor,
    budget: Tensor,
    uniform: Tensor | None,
    keyed: tuple[Tensor, Tensor] | None = None,
    *,
    charge: Charge,
) -> Projection:
    """`project_kl` for charge "mean", else `project_max`, of arguments that were checked.

    Nothing waits for the device, so values are not checked: a NaN budget counts as 0, and uniforms
    must be in [0, 1).
    Raises: ValueError for CPU tensors outside the interpreter, and for a vocabulary above
    MAX_VOCAB_SIZE.
    """
    memory = _memory(safe_logits)
    inputs = (budget, uniform, *(keyed or (None, None)))
    has_draw = uniform is not None or keyed is not None
    _launch(risky_logits, safe_logits, inputs, memory, charge=charge, has_draw=has_draw)
    flags = memory["flags_ptr"].view(torch.bool)

    def fact(column: tl.constexpr) -> Tensor:
        return memory["facts_ptr"][:, column.value]

    return Projection(
        weight=fact(at.WEIGHT),
        spend=fact(at.TOKEN_SPEND if charge == "drawn" and has_draw else at.SPEND),
        is_safe_only=flags[:, at.IS_SAFE_ONLY.value],
        is_valid=flags[:, at.IS_VALID.value],
        token_ids=memory["tokens_ptr"] if has_draw else None,
        accepted=flags[:, at.ACCEPTED.value] if has_draw else None,
        stored_log_probs=(fact(at.LOG_PROB), fact(at.SAFE_LOG_PROB)) if has_draw else None,
        risky_logits=risky_logits,
        safe_logits=safe_logits,
        risky_peak=fact(at.RISKY_PEAK),
        safe_peak=fact(at.SAFE_PEAK),
        log2_safe_mass=fact(at.LOG2_SAFE_MASS),
        slope=fact(at.SLOPE),
        offset=fact(at.OFFSET),
        ceiling=fact(at.CEILING),
        token_bounds=(fact(at.TOKEN_MOST), fact(at.TOKEN_MARGIN)) if charge == "drawn" else None,
    )


def _memory(logits: Tensor) -> dict[str, Tensor]:
    """Everything that a launch for logits (B, V) writes, by the kernel's names."""
    (num_rows, vocab_size), device = logits.shape, logits.device
    if vocab_size > MAX_VOCAB_SIZE:
        raise ValueError(f"vocab_size must be at most {MAX_VOCAB_SIZE}, got {vocab_size}")

    def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.zeros(num_rows, *shape, dtype=dtype, device=device)

    # The largest by far; what is read of it was written in the same launch.
    shape = num_rows, at.NUM_RECORDS.value, num_blocks(vocab_size)
    return {
        "facts_ptr": zeros(at.NUM_FACTS.value),
        "flags_ptr": zeros(at.NUM_FLAGS.value, dtype=torch.uint8),
        "tokens_ptr": zeros(dtype=torch.int64),
        "records_ptr": torch.empty(shape, dtype=torch.float64, device=device),
        "table_ptr": zeros(NUM_COLUMNS.value, TABLE_SIZE.value),
        "counters_ptr": zeros(dtype=torch.int64),
    }


def _launch(
    risky_logits: Tensor,
    safe_logits: Tensor,
    inputs: tuple[Tensor | None, ...],
    memory: dict[str, Tensor],
    *,
    charge: Charge,
    has_draw: bool,
) -> None:
    """Solve the rows of logits (B, V), and draw.

    inputs: budget, uniforms, keys and positions of the rows, None for what there is not.
    """
    (num_rows, vocab_size), device = safe_logits.shape, safe_logits.device
    check_device(device)
    size, count = block_size(vocab_size), num_blocks(vocab_size)
    num_splits = resident_splits(num_rows, vocab_size, device)
    # Triton runs kernels on the current device, wherever the tensors are.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        projection_kernel[(num_rows, num_splits)](
            risky_logits,
            safe_logits,
            *risky_logits.stride(),
            *safe_logits.stride(),
            *(None if values is None else values.to(device).contiguous() for values in inputs),
            **memory,
            vocab_size=vocab_size,
            num_blocks=count,
            num_splits=num_splits,
            HAS_DRAW=has_draw,
            CHARGE=charge,
            BLOCK_SIZE=size,
            STEP_SIZE=size if is_interpreted() else step_size(risky_logits, safe_logits),
            NUM_SLOTS=max(2, int(triton.next_power_of_2(count))),  # one value of every block
            num_warps=1,
            maxnreg=MAX_REGISTERS,
            launch_cooperative_grid=num_splits > 1,
        )
