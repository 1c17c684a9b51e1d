"""Host values that a device needs, sent without waiting for it."""

import torch
from torch import Tensor


def uploaded(values: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on the device; CUDA gets it through pinned memory, in the order of its work."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)
