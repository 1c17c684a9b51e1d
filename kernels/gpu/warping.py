"""What the walk kernel is told of the warping of raw logits; `layout.read_pair` does it."""

from typing import TypeAlias

import torch
import triton
from torch import Tensor

from ..warping import Warping

Inputs: TypeAlias = dict[str, Tensor | int | None]
"""Arguments of the kernel by name."""

NO_WARPING: Inputs = {
    "temperature_ptr": None,
    "penalty_ptr": None,
    "seen_ptr": None,
    "stops_ptr": None,
    "is_stop_ptr": None,
    "seen_request_stride": 0,
    "seen_row_stride": 0,
    "num_stops": 0,
    "STOP_SLOTS": 1,
}


def warping_inputs(warping: Warping | None) -> Inputs:
    """What tells the walk kernel how raw logits are warped; None for logits that are."""
    if warping is None:
        return NO_WARPING
    inputs = NO_WARPING | {"temperature_ptr": warping.temperature}
    if warping.seen is not None:
        request_stride, row_stride, _ = warping.seen.stride()
        inputs |= {
            "penalty_ptr": warping.penalty,
            "seen_ptr": warping.seen.view(torch.uint8),
            "seen_request_stride": request_stride,
            "seen_row_stride": row_stride,
        }
    if warping.stops is not None:
        num_stops = len(warping.stops.token_ids)
        inputs |= {
            "stops_ptr": warping.stops.token_ids,
            "is_stop_ptr": warping.stops.is_stop.view(torch.uint8),
            "num_stops": num_stops,
            "STOP_SLOTS": int(triton.next_power_of_2(num_stops)),
        }
    return inputs
