"""Files of one line a step that stay one curve, and the share of a GPU's arithmetic."""

import json
from pathlib import Path

import pytest
from training_runs import curve

from anchored.pretrain.run.metrics import StepLog, peak_flops_per_s


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


@pytest.mark.parametrize(
    "damaged",
    [b'{"st\xffp": 2}', b'{"step": "2"}', b'["step"]', b"\x00" * 9, b'{"stop": 2}', b"[" * 9999],
)
def test_lines_that_cannot_be_read_are_set_aside_and_end_nothing(tmp_path, caplog, damaged):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + damaged + b'\n{"step": 3}\n{"step": 4}\n')
    StepLog(path).keep_until(3)
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n'
    assert (tmp_path / "metrics.jsonl.damaged").read_bytes() == damaged + b"\n"
    assert caplog.messages[0].endswith(f"1 damaged lines were set aside as {path}.damaged")


def steps_in(path):
    return [line["step"] for line in curve(path.parent)]


def test_lines_that_cannot_be_written_wait_for_the_next_one(tmp_path, caplog):
    log = StepLog(Path("/dev/full"))
    for step in (1, 2, 3):
        log.append({"step": step})
    (message,) = caplog.messages
    assert message.startswith("/dev/full cannot be written ([Errno 28]")
    assert message.endswith("): its lines wait")
    log.path = tmp_path / "metrics.jsonl"
    log.append({"step": 4})
    log.append({"step": 5})
    assert steps_in(log.path) == [1, 2, 3, 4, 5]


def test_the_peak_of_a_gpu_that_is_not_known_is_not_guessed():
    assert peak_flops_per_s("NVIDIA H200") == 989e12
    assert peak_flops_per_s("cpu") is peak_flops_per_s("NVIDIA GeForce RTX 4090") is None
