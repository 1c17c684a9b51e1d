"""The device that computes the figures of a step: not every one has float64."""

import re
from functools import cache

import torch

NO_FLOAT64 = re.compile("float64|fp64|double")
"""A device without float64 says this: Apple's in a TypeError, some of Intel's in a RuntimeError."""


@cache
def work_device(device: torch.device) -> torch.device:
    """The device itself where it computes in float64, as bounds need it; else the CPU."""
    try:
        torch.ones(1, device=device).double().add(1.0)
    except torch.OutOfMemoryError:
        raise
    except (TypeError, RuntimeError) as error:
        if not NO_FLOAT64.search(str(error)):
            raise
        return torch.device("cpu")
    return device
