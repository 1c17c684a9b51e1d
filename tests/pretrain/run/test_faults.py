"""Runs survive figures that are not finite, and processes and disks that fail."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from forked_program import ForkedProgram
from training_runs import lines_of, start_run, train

from anchored.pretrain.export import llama_weights
from anchored.pretrain.run.checkpoints import checkpoint_steps, damage
from anchored.pretrain.run.record import run_lock


def run_with(faults, config_file, monkeypatch, *, num_processes=1):
    """The programs of a run with {step: fault}, once they have ended."""
    monkeypatch.setenv("FAULTS", json.dumps(faults))
    programs = start_run(config_file, num_processes=num_processes, program="faulty_pretrain")
    for program in programs:
        program.wait()
    return programs


@pytest.mark.slow
@pytest.mark.parametrize(("action", "num_processes"), [("off", 1), ("log", 2), ("skip", 1)])
def test_steps_that_are_not_finite_move_nothing_and_three_end_the_run(
    write_config, tmp_path, monkeypatch, action, num_processes
):
    run = tmp_path / "run"
    config = write_config(run, spike_guard={"action": action}, checkpoint={"interval": 1})
    faults = {3: "nan loss", 5: "inf grad", 7: "inf grad", 8: "nan loss", 9: "inf grad"}
    programs = run_with(faults, config, monkeypatch, num_processes=num_processes)
    assert [program.wait() for program in programs] == [1] * num_processes
    output = programs[0].output.read_text()
    assert "Traceback" not in output
    ending = [line for line in output.splitlines() if "3 steps up to step 9 had a loss" in line]
    assert len(ending) == 1 and ending[0].startswith("anchored.pretrain: spike_guard: ")
    spikes = lines_of(run / "spikes.jsonl")
    assert [line["step"] for line in spikes] == list(faults)
    assert all(line["action"] == "refused" for line in spikes)
    assert spikes[0]["loss"] == "nan"  # JSON has no number for it
    assert "step 3: refused, as the loss is nan" in output and "--step 3` lists its" in output
    checkpoints = checkpoint_steps(run / "checkpoint")
    assert max(checkpoints) == 8 and not any(map(damage, checkpoints.values()))
    losses = {line["step"]: line["loss"] for line in lines_of(run / "metrics.jsonl")}
    assert all(math.isfinite(losses[step]) for step in (4, 5, 6, 7))
    (program,) = run_with({}, config, monkeypatch)  # what was saved trains on
    assert program.wait() == 0
    assert [line["step"] for line in lines_of(run / "metrics.jsonl")] == list(range(1, 25))


@pytest.mark.slow
def test_weights_that_are_not_finite_are_never_saved(write_config, tmp_path, monkeypatch):
    run = tmp_path / "run"
    config = write_config(run, checkpoint={"interval": 3})
    programs = run_with({5: "nan weight", 6: "nan weight"}, config, monkeypatch, num_processes=2)
    assert [program.wait() for program in programs] == [1, 1]
    output = programs[0].output.read_text()
    assert "after step 6 weights or moments are not finite and are not saved" in output
    assert "Traceback" not in output
    assert list(checkpoint_steps(run / "checkpoint")) == [1, 3]


@pytest.fixture(scope="module")
def whole(write_config, tmp_path_factory):
    """The unbroken run on two processes that broken ones are compared with."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(write_config(folder), num_processes=2)
    return folder


def assert_equal_runs(run, whole):
    curves = [lines_of(folder / "metrics.jsonl") for folder in (run, whole)]
    assert [line["step"] for line in curves[0]] == list(range(1, 25))
    for ours, theirs in zip(*curves, strict=True):
        assert ours["loss"] == theirs["loss"] and ours["source_tokens"] == theirs["source_tokens"]
    record = json.loads((run / "run.json").read_text())["model"]
    last = [folder / "checkpoint" / "step-24" for folder in (run, whole)]
    ours, theirs = (llama_weights(path, record) for path in last)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.slow
def test_a_run_on_a_disk_that_is_full_for_a_while_ends_as_the_unbroken_one(
    whole, write_config, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    config = write_config(run, checkpoint={"interval": 4})
    faults = {3: "full disk", 11: "room again"}
    programs = run_with(faults, config, monkeypatch, num_processes=2)
    output = programs[0].wait_for_success()
    assert "Traceback" not in output
    for step in (4, 8):
        failed = f"step {step} could not be saved ([Errno 28] No space left on device)"
        assert sum(failed in line for line in output.splitlines()) == 1
    assert list(checkpoint_steps(run / "checkpoint")) == [1, 12, 16, 20, 24]
    assert_equal_runs(run, whole)


def torchrun(config, *, max_restarts, program="anchored.pretrain"):
    """A run on two processes under torchrun, whose stderr is read here."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", f"--max-restarts={max_restarts}", "-m", program]
    command += ["--job.config_file", str(config)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_run_whose_processes_are_killed_is_restarted_and_ends_as_the_unbroken_one(
    whole, write_config, tmp_path, monkeypatch
):
    config = write_config(tmp_path / "run", checkpoint={"interval": 4, "async_mode": "async"})
    monkeypatch.setenv("FAULTS", json.dumps({3: "kill 1", 14: "kill 0"}))
    monkeypatch.setenv("FAULTS_DONE", str(tmp_path))
    support = Path(__file__).parents[2] / "support"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(support), *sys.path]))
    with torchrun(config, max_restarts=3, program="faulty_pretrain") as process:
        errors = process.communicate()[1]
    assert process.returncode == 0, errors
    assert len(list(tmp_path.glob("*-[01]"))) == 2  # every fault has happened
    assert_equal_runs(tmp_path / "run", whole)


@pytest.mark.slow
def test_what_is_refused_under_torchrun_is_not_started_again(write_config, tmp_path):
    config = write_config(tmp_path / "run", training={"global_batch_size": 5})
    with torchrun(config, max_restarts=3) as process:
        lines = iter(process.stderr.readline, "")
        assert any("global_batch_size must be a multiple of" in line for line in lines)
        refused = time.monotonic()
        rest = process.stderr.read()
    assert process.returncode != 0
    assert "global_batch_size must be" not in rest
    assert time.monotonic() - refused < 20  # 30 s later torchrun kills what does not end


@pytest.mark.slow
def test_a_torchrun_that_is_killed_leaves_nothing_at_work(write_config, tmp_path):
    config = write_config(tmp_path / "run", steps=100_000)
    with torchrun(config, max_restarts=0) as process:
        while not (tmp_path / "run" / "metrics.jsonl").exists():
            assert process.poll() is None
            time.sleep(0.1)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
    assert len(children) >= 2
    deadline = time.monotonic() + 10
    while any(map(is_at_work, children)) or is_locked(tmp_path / "run"):
        assert time.monotonic() < deadline  # the next launch is not refused for ever
        time.sleep(0.1)


def is_at_work(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def is_locked(run):
    """Whether a process holds the run; one whose first thread is dead may until its last one is."""
    try:
        with run_lock(run):
            return False
    except ValueError:
        return True


@pytest.mark.slow
def test_of_two_launches_the_second_is_refused_and_the_first_unharmed(write_config, tmp_path):
    config = write_config(tmp_path / "run", steps=100_000)
    (first,) = start_run(config)
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert first.poll() is None
        time.sleep(0.01)
    second_output = tmp_path / "second.txt"
    second = ForkedProgram("anchored.pretrain", ["--job.config_file", str(config)], second_output)
    assert second.wait() == 1
    (line,) = second_output.read_text().splitlines()
    assert f"run is in use by process {first.pid} on " in line
    os.kill(first.pid, signal.SIGTERM)
    assert first.wait() == 0
