"""What a run survives: figures that are not finite, and processes and disks that fail."""

import json
import math

import pytest
from training_runs import start_run

from anchored.pretrain.run.checkpoints import checkpoint_steps, damage


def run_with(faults, config_file, monkeypatch, *, num_processes=1):
    """The programs of a run with {step: fault}, once they have ended."""
    monkeypatch.setenv("FAULTS", json.dumps(faults))
    programs = start_run(config_file, num_processes=num_processes, program="faulty_pretrain")
    for program in programs:
        program.wait()
    return programs


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("action", ["off", "log", "skip"])
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
    assert [(line["step"], line["action"]) for line in spikes] == [
        (step, "refused") for step in faults
    ]
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
    assert list(checkpoint_steps(run / "checkpoint")) == [3]
