"""Devices as a command line names them."""

import re

NAMES = re.compile(r"cpu|mps|(cuda|xpu)(:\d+)?")


def check_device_name(device: str) -> None:
    """Raise ValueError for what can be no device; torch is not asked."""
    if not NAMES.fullmatch(device):
        raise ValueError(f"a device must be cpu, cuda, cuda:N, xpu, xpu:N or mps, got {device!r}")


def check_presence(device: str) -> None:
    """Raise ValueError if this machine has no such device."""
    if device == "cpu":
        return
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count() if accelerator else 0
    name, _, index = device.partition(":")
    if accelerator is None or accelerator.type != name or int(index or 0) >= count:
        found = f"{count} of type {accelerator.type}" if accelerator else "none but the CPU"
        raise ValueError(f"there is no device {device} on this machine, which has {found}")
