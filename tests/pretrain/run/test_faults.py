"""Runs survive figures that are not finite, and processes and disks that fail."""

import json
import math

import pytest
from forked_program import ForkedProgram
from training_runs import HELDOUT, STEPS, assert_same_curves, curve, read_until, start_run, torchrun

from anchored.durable_files import locked
from anchored.pretrain.run.checkpoints import checkpoint_steps, damage
from anchored.pretrain.run.record import LOCK_NAME, RunRecord

pytestmark = pytest.mark.slow
FIGURES = {3: "nan loss", 5: "inf grad", 7: "inf grad", 8: "nan loss", 9: "inf grad"}
REFUSED = "spike_guard: 3 steps up to step 9 had a loss"
LOST = "after step 5 weights or moments are not finite and are not saved"


def run_with(faults, config_file, monkeypatch, *, num_processes=1):
    """The programs of a run with {step: fault}, and their exit statuses."""
    monkeypatch.setenv("FAULTS", json.dumps(faults))
    programs = start_run(config_file, num_processes=num_processes, program="faulty_pretrain")
    return programs, [program.wait() for program in programs]


@pytest.mark.parametrize(
    ("action", "faults", "ending"), [("skip", FIGURES, REFUSED), ("log", {5: "nan weight"}, LOST)]
)
def test_what_is_not_finite_is_never_saved_and_ends_the_run(
    write_config, tmp_path, monkeypatch, action, faults, ending
):
    run = tmp_path / "run"
    config = write_config(run, spike_guard={"action": action}, checkpoint={"interval": 1})
    programs, statuses = run_with(faults, config, monkeypatch, num_processes=2)
    assert statuses == [1, 1]
    output = programs[0].output.read_text()
    assert "Traceback" not in output
    (line,) = (line for line in output.splitlines() if ending in line)
    assert line.startswith("anchored.pretrain: ")
    checkpoints = checkpoint_steps(run / "checkpoint")
    assert max(checkpoints) == max(faults) - 1 and not any(map(damage, checkpoints.values()))
    if faults is FIGURES:
        spikes = curve(run, "spikes.jsonl")
        assert [line["step"] for line in spikes] == list(faults)
        assert all(line["action"] == "refused" for line in spikes)
        assert spikes[0]["loss"] == "nan"  # JSON has no number for it
        assert "step 3: refused, as the loss is nan" in output and "--step 3` lists its" in output
        figures = {line["step"]: line["loss"] for line in curve(run)}
        assert all(math.isfinite(figures[step]) for step in (4, 5, 6, 7))
    assert run_with({}, config, monkeypatch)[1] == [0]  # what was saved trains on
    assert [line["step"] for line in curve(run)] == list(range(1, STEPS + 1))


def test_processes_that_are_killed_and_a_disk_that_is_full_for_a_while_change_no_curve(
    finished, write_config, tmp_path, monkeypatch
):
    run, saves = tmp_path / "run", {"interval": 4, "async_mode": "async"}
    config = write_config(run, heldout=HELDOUT, checkpoint=saves)
    faults = {3: "full disk", 11: "room again", 14: "kill 0 in start 0", 18: "kill 1 in start 1"}
    monkeypatch.setenv("FAULTS", json.dumps(faults))
    with torchrun(config, max_restarts=3, program="faulty_pretrain") as process:
        errors = process.communicate()[1]
    assert process.returncode == 0, errors
    assert len(RunRecord.read(run).starts) == 3
    assert "step 8 could not be saved ([Errno 28] No space left on device)" in errors
    checkpoints = checkpoint_steps(run / "checkpoint")
    assert {12, 16, 20, 24} <= checkpoints.keys() and not {4, 8} & checkpoints.keys()
    assert_same_curves(run, finished)


def test_what_is_refused_under_torchrun_is_not_started_again(write_config, tmp_path):
    config = write_config(tmp_path / "run", training={"global_batch_size": 5})
    with torchrun(config, max_restarts=3) as process:
        errors = process.communicate()[1]
    assert process.returncode != 0
    assert errors.count("global_batch_size must be a multiple of") == 1


def test_a_second_launch_is_refused_and_a_torchrun_that_is_killed_leaves_the_run_free(
    write_config, tmp_path
):
    run, output = tmp_path / "run", tmp_path / "second.txt"
    config = write_config(run, steps=100_000, lr_scheduler={"total_steps": 100_000})
    with torchrun(config) as process:
        read_until(process, "step:  1")
        second = ForkedProgram("anchored.pretrain", ["--job.config_file", str(config)], output)
        assert second.wait() == 1
        (line,) = output.read_text().splitlines()
        assert f"{run} is in use by process " in line
        assert process.poll() is None
        process.kill()
    with locked(run / LOCK_NAME):  # once it is free; or the next launch would be refused for ever
        pass
