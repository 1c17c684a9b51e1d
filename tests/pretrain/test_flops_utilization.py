"""MFU as its formula says, and only where the GPU's peak is known."""

import pytest

from anchored.pretrain.flops_utilization import flops_utilization, peak_flops_per_s


def test_half_of_an_h200_is_48_560_tokens_a_second():
    peak = peak_flops_per_s("NVIDIA H200")
    mfu = flops_utilization(8 * 48_560, flops_per_token=1.0183e10, num_gpus=8, peak=peak)
    assert peak == 989e12
    assert mfu == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize("name", ["cpu", "NVIDIA GeForce RTX 4090"])
def test_an_unknown_device_has_no_peak(name):
    assert peak_flops_per_s(name) is None
