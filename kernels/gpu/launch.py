"""Launches of the walk kernel, their memory, and both projections by it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TypeAlias

import torch
import triton
from torch import Tensor

from ..law import Law, Projection
from . import layout
from . import walk_kernel as kernel
from .kl_search import NUM_COLUMNS, TABLE_SIZE
from .layout import NUM_LANES

# B requests, G rows of each, V vocabulary, N blocks of it.

MAX_REGISTERS = 255
"""Registers of a thread. The compiler is told, as it otherwise keeps some variants to 168 and
spills."""

MAX_BLOCK_SIZE = 1024
"""Tokens of one block: 126 blocks at V = 128,256, as many as an H200 has multiprocessors."""

MAX_VOCAB_SIZE = 2**18
"""Tokens for which `statistics.ROUNDING` bounds the rounding of a sum."""

MIN_BLOCK_SIZE = 32
VECTOR_BYTES = 16
"""Bytes that a lane reads at once."""

PROGRAMS_PER_PROCESSOR = 8
"""Programs, of one warp each, that a multiprocessor holds with whatever registers: two for each of
its schedulers. More would repeat what all programs of a request compute alike."""

Inputs: TypeAlias = dict[str, Tensor | None]
"""Arguments of the kernel by name."""


def block_size(vocab_size: int) -> int:
    """Tokens of one block; it depends on the vocabulary alone, and so does every sum."""
    return min(MAX_BLOCK_SIZE, max(MIN_BLOCK_SIZE, int(triton.next_power_of_2(vocab_size))))


def step_size(*logits: Tensor) -> int:
    """Tokens of a block that a program reads at once: a vector for each lane."""
    step = NUM_LANES.value * VECTOR_BYTES // max(each.element_size() for each in logits)
    return int(min(step, *(block_size(each.shape[-1]) for each in logits)))


def splits_of(num_requests: int, vocab_size: int, num_processors: int) -> int:
    """Programs a request so that one wave fills a device of so many multiprocessors."""
    num_blocks = -(-vocab_size // block_size(vocab_size))
    return min(num_blocks, max(1, PROGRAMS_PER_PROCESSOR * num_processors // num_requests))


@dataclass(frozen=True, kw_only=True, slots=True)
class Workspace:
    """Everything a launch writes. Launches that share one must follow each other on one stream."""

    vocab_size: int
    num_splits: int
    """Programs that share a request; results do not depend on it."""
    facts: Tensor
    """(B, G, NUM_FACTS) float64."""
    flags: Tensor
    """(B, G, NUM_FLAGS) bool."""
    token_ids: Tensor
    """(B, G) int64."""
    walks: Tensor
    """(B, G + 1, 2) float64."""
    records: Tensor
    """(B, G, NUM_RECORDS, N) float64."""
    tables: Tensor
    """(B, G, NUM_COLUMNS, TABLE_SIZE) float64."""
    counters: Tensor
    """(B,) int64; 0 at first, and never to be written by others."""

    @property
    def num_requests(self) -> int:
        return self.token_ids.shape[0]

    @property
    def num_positions(self) -> int:
        return self.token_ids.shape[1]

    @property
    def block_size(self) -> int:
        return block_size(self.vocab_size)

    @property
    def num_blocks(self) -> int:
        return -(-self.vocab_size // self.block_size)

    @property
    def num_slots(self) -> int:
        """The power of two that holds one value of every block."""
        return max(2, int(triton.next_power_of_2(self.num_blocks)))


def workspace(
    num_requests: int,
    num_positions: int,
    vocab_size: int,
    device: torch.device,
    num_splits: int | None = None,
) -> Workspace:
    """Memory for walks of `num_requests` x `num_positions` rows of `vocab_size` logits.

    num_splits: programs a request, in [1, blocks]; `resident_splits` unless given.
    Raises: ValueError if vocab_size is above MAX_VOCAB_SIZE.
    """
    if vocab_size > MAX_VOCAB_SIZE:
        raise ValueError(f"vocab_size must be at most {MAX_VOCAB_SIZE}, got {vocab_size}")
    num_blocks = -(-vocab_size // block_size(vocab_size))
    if num_splits is None:
        num_splits = resident_splits(num_requests, vocab_size, device)
    rows = (num_requests, num_positions)

    def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.zeros(*shape, dtype=dtype, device=device)

    return Workspace(
        vocab_size=vocab_size,
        num_splits=num_splits,
        facts=zeros(*rows, layout.NUM_FACTS.value),
        flags=zeros(*rows, layout.NUM_FLAGS.value, dtype=torch.bool),
        token_ids=zeros(*rows, dtype=torch.int64),
        walks=zeros(num_requests, num_positions + 1, 2),
        # The largest by far; what is read of it was written in the same launch.
        records=torch.empty(
            *rows, layout.NUM_RECORDS.value, num_blocks, dtype=torch.float64, device=device
        ),
        tables=zeros(*rows, NUM_COLUMNS.value, TABLE_SIZE.value),
        counters=zeros(num_requests, dtype=torch.int64),
    )


def resident_splits(num_requests: int, vocab_size: int, device: torch.device) -> int:
    """Programs a request so that one wave fills the device: all are resident, as barriers need.

    1 in the interpreter, which runs programs one after another: none may wait for a later one.
    """
    if device.type != "cuda" or is_interpreted():
        return 1
    num_processors = torch.cuda.get_device_properties(device).multi_processor_count
    return splits_of(num_requests, vocab_size, num_processors)


def is_interpreted() -> bool:
    """Whether kernels run in Triton's interpreter: TRITON_INTERPRET=1 when triton was imported."""
    return not isinstance(kernel.walk_kernel, triton.JITFunction)


def check_device(device: torch.device) -> None:
    """Raise ValueError where Triton cannot run: on the CPU, unless it is interpreted."""
    if device.type != "cuda" and not is_interpreted():
        raise ValueError(
            "Triton kernels need CUDA tensors, or TRITON_INTERPRET=1 set before triton is "
            f"imported; got tensors on {device}"
        )


def launch(
    risky_logits: Tensor,
    safe_logits: Tensor,
    memory: Workspace,
    inputs: Inputs,
    constants: dict[str, bool | int],
) -> None:
    """Walk all requests: logits (B, G, V); `inputs` and `constants` as the kernel names them.

    Raises: ValueError for CPU tensors outside the interpreter.
    """
    device, pair = risky_logits.device, (risky_logits, safe_logits)
    check_device(device)
    # Triton runs kernels on the current device, wherever the tensors are.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel.walk_kernel[(memory.num_requests, memory.num_splits)](
            risky_logits,
            safe_logits,
            *risky_logits.stride(),
            *safe_logits.stride(),
            **inputs,
            facts_ptr=memory.facts,
            flags_ptr=memory.flags.view(torch.uint8),
            tokens_ptr=memory.token_ids,
            walks_ptr=memory.walks,
            records_ptr=memory.records,
            table_ptr=memory.tables,
            counters_ptr=memory.counters,
            vocab_size=memory.vocab_size,
            num_blocks=memory.num_blocks,
            num_splits=memory.num_splits,
            num_positions=memory.num_positions,
            **constants,
            BLOCK_SIZE=memory.block_size,
            STEP_SIZE=memory.block_size if is_interpreted() else step_size(*pair),
            NUM_SLOTS=memory.num_slots,
            num_warps=1,
            maxnreg=MAX_REGISTERS,
            launch_cooperative_grid=memory.num_splits > 1,
        )


def walk(
    risky_logits: Tensor,
    safe_logits: Tensor,
    accounts: Tensor,
    seeds: Tensor,
    drafts: Tensor,
    *,
    is_max: bool,
) -> dict[str, Tensor]:
    """`walk.walk` of arguments that were checked; returns the columns of a `Walk` by name."""
    num_requests, num_positions, vocab_size = risky_logits.shape
    memory = workspace(num_requests, num_positions, vocab_size, risky_logits.device)
    inputs: Inputs = {
        "budget_ptr": None,
        "account_ptr": accounts,
        "uniform_ptr": None,
        "seeds_ptr": seeds,
        "drafts_ptr": drafts,
    }
    launch(risky_logits, safe_logits, memory, inputs, {"HAS_DRAW": True, "IS_MAX": is_max})
    facts, flags = memory.facts, memory.flags
    return {
        "was_reached": flags[..., layout.WAS_REACHED.value],
        "is_valid": flags[..., layout.IS_VALID.value],
        "is_safe_only": flags[..., layout.IS_SAFE_ONLY.value],
        "accepted": flags[..., layout.ACCEPTED.value],
        "token_ids": memory.token_ids,
        "weight": facts[..., layout.WEIGHT.value],
        "spend": facts[..., layout.SPEND.value],
        "budget": facts[..., layout.BUDGET.value],
        "log_probs": facts[..., layout.LOG_PROB.value],
        "safe_log_probs": facts[..., layout.SAFE_LOG_PROB.value],
    }


def project(
    risky_logits: Tensor,
    safe_logits: Tensor,
    budget: Tensor,
    uniform: Tensor | None,
    *,
    is_max: bool,
) -> Projection:
    """`project_kl`, or `project_max` if `is_max`, of arguments whose shapes were checked.

    Nothing waits for the device, so values are not checked: a NaN budget counts as 0, and uniforms
    must be in [0, 1).
    """
    num_rows, vocab_size = risky_logits.shape
    device, has_draw = risky_logits.device, uniform is not None
    memory = workspace(num_rows, 1, vocab_size, device)
    inputs: Inputs = {
        "budget_ptr": budget.to(device).contiguous(),
        "account_ptr": None,
        "uniform_ptr": None if uniform is None else uniform.to(device).contiguous(),
        "seeds_ptr": None,
        "drafts_ptr": None,
    }
    pair = risky_logits[:, None], safe_logits[:, None]
    launch(*pair, memory, inputs, {"HAS_DRAW": has_draw, "IS_MAX": is_max})
    facts, flags = memory.facts[:, 0], memory.flags[:, 0]
    is_valid = flags[:, layout.IS_VALID.value]
    is_safe_only = flags[:, layout.IS_SAFE_ONLY.value]
    log_probs = (facts[:, layout.LOG_PROB.value], facts[:, layout.SAFE_LOG_PROB.value])
    law = Law(
        risky_logits=risky_logits,
        safe_logits=safe_logits,
        risky_peak=facts[:, layout.RISKY_PEAK.value],
        safe_peak=facts[:, layout.SAFE_PEAK.value],
        log2_safe_mass=facts[:, layout.LOG2_SAFE_MASS.value],
        slope=facts[:, layout.SLOPE.value],
        offset=facts[:, layout.OFFSET.value],
        ceiling=facts[:, layout.CEILING.value],
        is_safe_only=is_safe_only,
    )
    return Projection(
        weight=facts[:, layout.WEIGHT.value],
        spend=facts[:, layout.SPEND.value],
        is_safe_only=is_safe_only,
        is_valid=is_valid,
        token_ids=memory.token_ids[:, 0] if has_draw else None,
        accepted=flags[:, layout.ACCEPTED.value] if has_draw else None,
        law=law,
        stored_log_probs=log_probs if has_draw else None,
    )
