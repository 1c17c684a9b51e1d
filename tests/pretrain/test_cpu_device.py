"""The CPU stands in for the accelerator only where there is none."""

import sys

import pytest
import torch
import torch._utils

from anchored.pretrain.cpu_device import use_cpu_without_accelerator


@pytest.fixture
def torch_utils(monkeypatch):
    """torch's device functions, restored after the test."""
    for name in ("_get_available_device_type", "_get_device_module"):
        monkeypatch.setattr(torch._utils, name, getattr(torch._utils, name))
    return torch._utils


def test_the_cpu_answers_all_that_torchtitan_asks(torch_utils, monkeypatch):
    monkeypatch.setattr(torch_utils, "_get_available_device_type", lambda: None)
    monkeypatch.delitem(sys.modules, "torchtitan.tools.utils")
    assert use_cpu_without_accelerator() is True
    assert torch_utils._get_available_device_type() == "cpu"
    device = torch_utils._get_device_module("cpu")
    device.set_device(torch.device("cpu:0"))
    device.synchronize()
    device.reset_peak_memory_stats()
    device.empty_cache()
    assert device.current_device() == 0
    assert device.get_device_name() == "cpu"
    assert device.get_device_properties().total_memory > 0
    assert device.memory_stats() == {}


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
