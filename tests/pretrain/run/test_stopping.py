"""Ctrl-C: before training at once and in one line, in it after the step, and twice at once."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from training_runs import curve, start_run, torchrun, train, wait_until

from anchored.pretrain.run import stop_signals
from anchored.pretrain.run.checkpoints import checkpoint_steps, damage

STOPPING = "anchored.pretrain: stopping after this step, with a checkpoint (Ctrl-C again to stop a"
AT_ONCE = "anchored.pretrain: stopped at once; the same command goes on from the last checkpoint\n"
LONG_ENOUGH_S = 1.2  # to be another press and not the same one, passed on


@pytest.mark.parametrize(
    "first", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_ends_a_run_after_its_step_with_a_checkpoint(write_config, tmp_path, first):
    run = tmp_path / "run"
    config = write_config(run, steps=5000, lr_scheduler={"total_steps": 5000})
    (program,) = start_run(config)
    assert program.end_when(lambda: len(curve(run)) >= 3, first) == 0
    output = program.output.read_text()
    step = max(saved := checkpoint_steps(run / "checkpoint"))
    assert STOPPING in output and f"stopped by a signal after step {step} of 5000" in output
    assert "Traceback" not in output and damage(saved[step]) is None
    assert [line["step"] for line in curve(run)] == list(range(1, step + 1))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (signal.SIGINT, signal.SIGINT),
        pytest.param(signal.SIGINT, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_a_second_one_ends_it_at_once_and_it_is_resumed(
    write_config, tmp_path, monkeypatch, first, second
):
    run, long_step = tmp_path / "run", tmp_path / "long"
    config = write_config(run, checkpoint={"interval": 3})
    monkeypatch.setenv("FAULTS", '{"5": "long step"}')
    monkeypatch.setenv("LONG_STEP", str(long_step))
    (program,) = start_run(config, program="faulty_pretrain")
    program.wait_until(long_step.exists)
    os.kill(program.pid, first)
    program.wait_until(lambda: STOPPING in program.output.read_text())
    time.sleep(LONG_ENOUGH_S)
    assert program.poll() is None
    os.kill(program.pid, second)
    assert program.wait() == 130
    output = program.output.read_text()
    assert output.endswith(AT_ONCE) and output.count(STOPPING) == 1 and "Traceback" not in output
    assert max(checkpoint_steps(run / "checkpoint")) == 3
    train(config)
    assert [line["step"] for line in curve(run)] == list(range(1, 25))


@pytest.mark.slow
@pytest.mark.parametrize("is_pressed_twice", [False, True])
def test_torchrun_passes_it_on(write_config, tmp_path, monkeypatch, is_pressed_twice):
    run, long_step, lines = tmp_path / "run", tmp_path / "long", []
    config = write_config(run, steps=5000, lr_scheduler={"total_steps": 5000})
    monkeypatch.setenv("FAULTS", '{"5": "long step"}' if is_pressed_twice else "{}")
    monkeypatch.setenv("LONG_STEP", str(long_step))
    with torchrun(config, program="faulty_pretrain") as process:
        if is_pressed_twice:
            wait_until(process, long_step.exists)
        else:
            wait_until(process, lambda: len(curve(run)) >= 3)
        process.send_signal(signal.SIGINT)
        for line in iter(process.stderr.readline, ""):
            lines.append(line)
            if is_pressed_twice and STOPPING in line:
                time.sleep(LONG_ENOUGH_S)
                process.send_signal(signal.SIGINT)
    ours = [line for line in lines if "anchored.pretrain: " in line]
    assert sum(STOPPING in line for line in ours) == 1
    if is_pressed_twice:
        assert AT_ONCE in ours
    else:
        step = max(saved := checkpoint_steps(run / "checkpoint"))
        assert f"stopped by a signal after step {step} of 5000" in "".join(lines)
        assert damage(saved[step]) is None


def test_the_same_press_passed_on_is_no_second_one(monkeypatch):
    clock, ends = SimpleNamespace(monotonic=lambda: clock.now, now=5.0), []
    monkeypatch.setattr(stop_signals, "time", clock)
    monkeypatch.setattr(os, "_exit", ends.append)
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)]
    request = stop_signals.StopRequest()
    request.watch()
    try:
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(number)
        assert request.is_made and not ends
        clock.now += 1.1
        signal.raise_signal(signal.SIGTERM)
        assert ends == [130]
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def test_where_a_shell_ignores_it_a_run_does_too():
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "from anchored.pretrain.run.stop_signals import StopRequest, end_on_interrupt;"
        "end_on_interrupt(); request = StopRequest(); request.watch();"
        "signal.raise_signal(signal.SIGINT); sys.exit(9 if request.is_made else 7)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 7
