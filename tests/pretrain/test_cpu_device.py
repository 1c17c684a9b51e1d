"""The CPU stands in for the accelerator only where there is none."""

import pytest
import torch._utils

from anchored.pretrain.cpu_device import use_cpu_without_accelerator


def test_it_leaves_an_accelerator_alone_and_comes_too_late_after_torchtitan(monkeypatch):
    monkeypatch.setattr(torch._utils, "_get_available_device_type", lambda: "cuda")
    module = torch._utils._get_device_module
    assert use_cpu_without_accelerator() is False and torch._utils._get_device_module is module
    monkeypatch.setattr(torch._utils, "_get_available_device_type", lambda: None)
    with pytest.raises(RuntimeError, match="torchtitan was imported before"):
        use_cpu_without_accelerator()
