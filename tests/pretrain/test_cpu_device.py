"""The CPU stands in for the accelerator only where there is none."""

import pytest
import torch._utils

from anchored.pretrain.cpu_device import use_cpu_without_accelerator


@pytest.fixture
def torch_utils(monkeypatch):
    """torch's device functions, restored after the test."""
    for name in ("_get_available_device_type", "_get_device_module"):
        monkeypatch.setattr(torch._utils, name, getattr(torch._utils, name))
    return torch._utils


def test_it_leaves_an_accelerator_alone_and_comes_too_late_after_torchtitan(
    torch_utils, monkeypatch
):
    monkeypatch.setattr(torch_utils, "_get_available_device_type", lambda: "cuda")
    functions = (torch_utils._get_available_device_type, torch_utils._get_device_module)
    assert use_cpu_without_accelerator() is False
    assert functions == (torch_utils._get_available_device_type, torch_utils._get_device_module)
    monkeypatch.setattr(torch_utils, "_get_available_device_type", lambda: None)
    with pytest.raises(RuntimeError, match="torchtitan was imported before"):
        use_cpu_without_accelerator()
