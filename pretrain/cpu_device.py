"""Lets torchtitan run where there is no accelerator: the CPU answers as its device module."""

import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch._utils


def use_cpu_without_accelerator() -> bool:
    """Make torchtitan bind the CPU on a machine without an accelerator; otherwise do nothing.

    torchtitan picks its device when it is first imported and takes "cuda" where torch finds no
    device, so this must run before. Returns whether the CPU takes its place.
    Raises: RuntimeError if torchtitan was imported before.
    """
    if torch._utils._get_available_device_type() is not None:
        return False
    if "torchtitan.tools.utils" in sys.modules:
        raise RuntimeError(
            "torchtitan was imported before the CPU could take the accelerator's place"
        )
    device_module = _CpuDeviceModule()
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda device_type: device_module  # type: ignore[assignment]
    return True


class _CpuDeviceModule:
    """torch.cpu, completed by the calls that torchtitan makes of torch.cuda."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def current_device(self) -> int:
        return 0  # torch.cpu answers "cpu", and barriers want an index

    def get_device_name(self, device: Any = None) -> str:
        return "cpu"

    def get_device_properties(self, device: Any = None) -> SimpleNamespace:
        # Only percentages in the log are taken of it; 1 GiB means "not known".
        return SimpleNamespace(total_memory=1 << 30)

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        return {}

    def reset_peak_memory_stats(self) -> None: ...

    def empty_cache(self) -> None: ...
