"""Files of one line a step that stay one curve, and the share of a GPU's arithmetic."""

import json

import pytest

from anchored.pretrain.run.metrics import StepLog, flops_utilization, peak_flops_per_s


@pytest.mark.parametrize(
    ("steps", "tail", "kept"),
    [
        (range(1, 14), "", range(1, 11)),  # later ones are about to be trained again
        ([1, 2], '{"step": 3, "lo', [1, 2]),  # cut by a kill
        ([], None, []),  # a run without metrics starts its file later
    ],
)
def test_steps_up_to_the_checkpoint_are_kept(tmp_path, steps, tail, kept):
    lines = [json.dumps({"step": step}) + "\n" for step in steps]
    path = tmp_path / "metrics.jsonl"
    if tail is not None:
        path.write_text("".join(lines) + tail)
    StepLog(path).keep_until(10)
    assert path.exists() == (tail is not None)
    assert not kept or path.read_text() == "".join(lines[: len(kept)])


def test_half_of_an_h200_is_48_560_tokens_a_second():
    peak = peak_flops_per_s("NVIDIA H200")
    assert peak == 989e12
    assert flops_utilization(48_560, 1.0183e10, peak) == pytest.approx(0.5, abs=1e-4)


@pytest.mark.parametrize("name", ["cpu", "NVIDIA GeForce RTX 4090"])
def test_an_unknown_device_has_no_peak(name):
    assert peak_flops_per_s(name) is None
