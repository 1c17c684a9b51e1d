"""Decisions that all processes of a run must take in the same step."""

import torch
import torch.distributed as dist


def any_rank(*claims: bool, device: torch.device) -> list[bool]:
    """For each claim, whether at least one process makes it; the same answer on every process.

    device: where the process group communicates. One small reduction, so call it once a step.
    """
    flags = torch.tensor(claims, dtype=torch.int32, device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return [bool(flag) for flag in flags.tolist()]
