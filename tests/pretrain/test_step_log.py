"""A log of steps stays one curve through interruptions."""

import json

from anchored.pretrain.step_log import StepLog


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
