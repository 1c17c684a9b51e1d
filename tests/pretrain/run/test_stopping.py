"""Ctrl-C: before training at once and in one line, in it after the step, and twice at once."""

import os
import signal
from types import SimpleNamespace

import pytest
from training_runs import curve, read_until, start_run, torchrun, train, wait_for

from anchored.pretrain.run import stop_signals
from anchored.pretrain.run.checkpoints import checkpoint_steps, damage

STOPPING = "anchored.pretrain: stopping after this step, with a checkpoint (Ctrl-C again to stop a"
AT_ONCE = "anchored.pretrain: stopped at once; the same command goes on from the last checkpoint\n"
LONG = {"steps": 5000, "lr_scheduler": {"total_steps": 5000}}


def test_a_signal_ends_a_run_after_its_step_with_a_checkpoint(write_config, tmp_path):
    run = tmp_path / "run"
    (program,) = start_run(write_config(run, **LONG))
    assert program.end_when(lambda: len(curve(run)) >= 3, signal.SIGTERM) == 0
    output = program.output.read_text()
    step = max(saved := checkpoint_steps(run / "checkpoint"))
    assert STOPPING in output and f"stopped by a signal after step {step} of 5000" in output
    assert "Traceback" not in output and damage(saved[step]) is None
    assert [line["step"] for line in curve(run)] == list(range(1, step + 1))


@pytest.mark.slow
def test_a_second_ctrl_c_ends_a_run_at_once_and_it_is_resumed(write_config, tmp_path, monkeypatch):
    run = tmp_path / "run"
    config = write_config(run, checkpoint={"interval": 3})
    monkeypatch.setenv("FAULTS", '{"5": "long step"}')
    (program,) = start_run(config, program="faulty_pretrain")
    for seen in ("long step", STOPPING):
        wait_for(program, seen)
        os.kill(program.pid, signal.SIGINT)
    assert program.wait() == 130
    output = program.output.read_text()
    assert output.endswith(AT_ONCE) and output.count(STOPPING) == 1 and "Traceback" not in output
    assert max(checkpoint_steps(run / "checkpoint")) == 3
    train(config)
    assert [line["step"] for line in curve(run)] == list(range(1, 25))


@pytest.mark.slow
def test_torchrun_passes_it_on_and_that_is_no_second_press(write_config, tmp_path):
    run = tmp_path / "run"
    with torchrun(write_config(run, **LONG)) as process:
        read_until(process, "step:  3")
        process.send_signal(signal.SIGINT)
        output = "".join(process.stderr)
    step = max(saved := checkpoint_steps(run / "checkpoint"))
    assert output.count(STOPPING) == 1 and damage(saved[step]) is None
    assert f"stopped by a signal after step {step} of 5000" in output


@pytest.fixture
def watched(monkeypatch):
    """Makes a request that is watched for, and what it does to this process: a clock, and the
    statuses with which it would have ended."""
    clock, ends = SimpleNamespace(monotonic=lambda: clock.now, now=5.0), []
    monkeypatch.setattr(stop_signals, "time", clock)
    monkeypatch.setattr(os, "_exit", ends.append)
    # A shell may have started the tests with SIGINT ignored.
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [(number, signal.signal(number, signal.SIG_DFL)) for number in numbers]

    def watch():
        request = stop_signals.StopRequest()
        request.watch()
        return request, clock, ends

    yield watch
    for number, handler in before:
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("first", "second", "ended"),
    [
        (signal.SIGINT, signal.SIGINT, [130]),
        (signal.SIGINT, signal.SIGTERM, [130]),  # torchrun's, for a second Ctrl-C
        (signal.SIGTERM, signal.SIGTERM, []),
    ],
)
def test_a_second_press_ends_a_run_and_the_same_one_passed_on_does_not(
    watched, first, second, ended
):
    request, clock, ends = watched()
    for number in (first, first, second):
        signal.raise_signal(number)
    assert request.is_made and not ends
    clock.now += 1.1
    signal.raise_signal(second)
    assert ends == ended


def test_where_a_shell_ignores_it_a_run_does_too(watched):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop_signals.end_on_interrupt()
    request, _, ends = watched()
    signal.raise_signal(signal.SIGINT)
    assert not request.is_made and not ends
