"""Files of one line a step that stay one curve."""

from pathlib import Path

from training_runs import curve

from anchored.pretrain.run.metrics import StepLog


def test_whole_lines_up_to_the_checkpoint_are_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    StepLog(path).keep_until(10)
    assert not path.exists()  # a run without metrics starts its file later
    # Later ones are about to be trained again; a kill or a crash may leave others torn.
    path.write_bytes(b'{"step": 2}\n\x00\xff\n{"step": 10}\n{"step": 11}\n{"step": 9}')
    StepLog(path).keep_until(10)
    assert path.read_text() == '{"step": 2}\n{"step": 10}\n'


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
    assert [line["step"] for line in curve(tmp_path)] == [1, 2, 3, 4, 5]
