"""Launches of the walk kernel: one on a device, one a phase in the interpreter."""

import torch
import triton
from torch import Tensor

from . import triton_walk as kernel
from .triton_layout import NUM_STEPS
from .triton_solver import SEARCHING
from .triton_workspace import Workspace

# B requests, G rows of each, V vocabulary.


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
    inputs: dict[str, Tensor | None],
    constants: dict[str, bool | int],
) -> None:
    """Walk all requests: logits (B, G, V); `inputs` and `constants` as the kernel names them.

    Raises: ValueError for CPU tensors outside the interpreter.
    """
    check_device(risky_logits.device)
    # Where programs run one after another, none may wait for a later one.
    if memory.num_splits > 1 and risky_logits.device.type != "cuda":
        for position in range(memory.num_positions):
            _launch_phases(risky_logits, safe_logits, memory, inputs, constants, position)
    else:
        span = (0, memory.num_positions, 0)
        _launch(risky_logits, safe_logits, memory, inputs, constants, kernel.ALL.value, span)


def _launch_phases(
    risky_logits: Tensor,
    safe_logits: Tensor,
    memory: Workspace,
    inputs: dict[str, Tensor | None],
    constants: dict[str, bool | int],
    position: int,
) -> None:
    def run(phase: int, step: int = 0) -> None:
        span = (position, position + 1, step)
        _launch(risky_logits, safe_logits, memory, inputs, constants, phase, span)

    run(kernel.STATISTICS.value)
    run(kernel.MASKS.value)
    step, is_searching = 0, True
    while is_searching:
        run(kernel.SEARCH.value, step)
        num_steps = memory.facts[:, position, NUM_STEPS.value]
        step, is_searching = step + 1, bool((num_steps == SEARCHING.value).any())
    run(kernel.SETTLE.value)
    run(kernel.FINISH.value)


def _launch(
    risky_logits: Tensor,
    safe_logits: Tensor,
    memory: Workspace,
    inputs: dict[str, Tensor | None],
    constants: dict[str, bool | int],
    phase: int,
    span: tuple[int, int, int],
) -> None:
    first_position, last_position, first_step = span
    kernel.walk_kernel[(memory.num_splits, memory.num_requests)](
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
        num_positions=memory.num_positions,
        first_position=first_position,
        last_position=last_position,
        first_step=first_step,
        **constants,
        PHASE=phase,
        BLOCK_SIZE=memory.block_size,
        NUM_SLOTS=memory.num_slots,
        NUM_SPLITS=memory.num_splits,
        num_warps=memory.num_warps,
        launch_cooperative_grid=memory.num_splits > 1,
    )
