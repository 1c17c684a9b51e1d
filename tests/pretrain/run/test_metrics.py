"""Files of one line a step that stay one curve, and the share of a GPU's arithmetic."""

import json

import pytest

from anchored.pretrain.run.metrics import StepLog, flops_utilization, peak_flops_per_s


def write(path, steps, tail=""):
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in steps) + tail)


def read(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_steps_after_the_checkpoint_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 14))
    StepLog(path).keep_until(10)
    assert read(path) == list(range(1, 11))


def test_a_line_cut_by_a_kill_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [1, 2], tail='{"step": 3, "lo')
    StepLog(path).keep_until(10)
    assert read(path) == [1, 2]


def test_a_run_without_metrics_starts_its_file_later(tmp_path):
    StepLog(tmp_path / "metrics.jsonl").keep_until(0)
    assert list(tmp_path.iterdir()) == []


def test_half_of_an_h200_is_48_560_tokens_a_second():
    peak = peak_flops_per_s("NVIDIA H200")
    assert peak == 989e12
    assert flops_utilization(48_560, 1.0183e10, peak) == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize("name", ["cpu", "NVIDIA GeForce RTX 4090"])
def test_an_unknown_device_has_no_peak(name):
    assert peak_flops_per_s(name) is None
