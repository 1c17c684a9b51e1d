"""Checks of decode attention against float64."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from anchored.kernels.decode_attention import decode_attention

from .check import Check, can_run, skipped

NAME = "decode attention reads each row's own length"
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def attention_checks(device: torch.device) -> Iterator[Check]:
    """One check: rows of unlike lengths, grouped heads, one and several new columns."""
    if not can_run(device):
        yield skipped(NAME, f"Triton cannot run on {device}")
        return
    worst, passed = 0.0, True
    for dtype, tolerance in TOLERANCE.items():
        for num_columns in (1, 5):
            inputs = _inputs(device, dtype, num_columns)
            error = (decode_attention(**inputs, backend="triton").double() - _exact(**inputs)).abs()
            worst = max(worst, error.max().item())
            passed &= error.max().item() <= tolerance
    yield Check(name=NAME, passed=passed, detail=f"largest difference {worst:.1e}")


def _inputs(device: torch.device, dtype: torch.dtype, num_columns: int) -> dict[str, Tensor]:
    capacity = 4096 if device.type == "cuda" else 150
    generator = torch.Generator().manual_seed(num_columns)
    shapes = [(3, 32, num_columns, 128), (3, 8, capacity, 128), (3, 8, capacity, 128)]
    if device.type != "cuda":
        shapes = [(3, 4, num_columns, 16), (3, 2, capacity, 16), (3, 2, capacity, 16)]
    tensors = (torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes)
    starts = torch.tensor([0, capacity // 2, capacity - num_columns])
    positions = (starts[:, None] + torch.arange(num_columns)).to(device)
    return dict(zip(("query", "key", "value"), tensors, strict=True)) | {"positions": positions}


def _exact(query: Tensor, key: Tensor, value: Tensor, positions: Tensor) -> Tensor:
    group = query.shape[1] // key.shape[1]
    key, value = (x.double().repeat_interleave(group, dim=1) for x in (key, value))
    scores = query.double() @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    columns = torch.arange(key.shape[2], device=key.device)
    is_hidden = columns > positions[:, None, :, None]
    return scores.masked_fill(is_hidden, -math.inf).softmax(-1) @ value
