"""Settings that make another run, what run.json says of a start, and where a fork begins."""

import json
import shutil
from itertools import count

import numpy as np
import pytest
from training_runs import curve, losses, save_steps, train

from anchored.pretrain.export import model_card
from anchored.pretrain.plan.data_plan import tokens_read
from anchored.pretrain.run.checkpoints import checkpoint_steps
from anchored.pretrain.run.record import RunRecord
from anchored.tools.commands.training.plan import PlanConfig
from anchored.tools.commands.training.plan import run as plan_command

FLOAT8 = {"filter_fqns": ["output"], "emulate": True}
AT_WORK = {
    "model": {"converters": ["quantize.linear.float8"]},
    "quantize": {"linear": {"float8": FLOAT8}},
    "spike_guard": {"action": "skip"},
}
"""Settings of a run in which every section is at work."""


def test_settings_that_decide_weights_are_named_where_they_differ_and_others_may(begin, tmp_path):
    numbers = count()

    def record(**changes):
        return begin(tmp_path / f"{next(numbers)}", **AT_WORK | changes)[1]

    before, rowwise = record(), FLOAT8 | {"recipe_name": "rowwise"}
    for changes, difference in (
        ({"quantize": {"linear": {"float8": rowwise}}}, "was tensorwise and is now rowwise"),
        ({"training": {"global_batch_size": 8}}, "global_batch_size was 4 and is now 8"),
        # As they count: where they are not set, those of the run and of a process.
        ({"steps": 20, "without": ", total_steps = 24"}, "total_steps was 24 and is now 20"),
        (
            {"training": {"local_batch_size": 1, "global_batch_size": -1}},
            "training.global_batch_size was 4 and is now 1",
        ),
    ):
        assert before.difference(record(**changes)).endswith(difference)
    for changes in (
        {"checkpoint": {"interval": 3}, "compile": {"enable": True}, "loss": {"chunk_tokens": 8}},
        {"steps": 20},
        {"training": {"local_batch_size": 1}},
    ):
        assert before.difference(record(**changes)) is None
    # A section that nothing reads may differ.
    idle = record(spike_guard={"action": "log"})
    assert idle.difference(record(spike_guard={"action": "off", "window": 9})) is None


# Forks: a run that goes on from another one's checkpoint.


def test_a_fork_has_a_copy_of_the_checkpoint_and_goes_on_by_its_settings(begin, tmp_path):
    parent = tmp_path / "parent"
    begin(parent)
    save_steps(parent, 10, 15)
    (parent / "metrics.jsonl").write_text('{"step": 15}\n')
    before = {path: path.read_bytes() for path in parent.rglob("*") if path.is_file()}
    source = parent / "checkpoint" / "step-10"
    fork = {"fork_from": str(source), "fork_skip_steps": 2}
    settings = {"checkpoint": fork, "optimizer": {"lr": 1e-3}}
    with pytest.raises(ValueError, match=r"another debug.seed \(3 there, 1 here\): only optimizer"):
        begin(tmp_path / "run", debug={"seed": 1}, **settings)
    (remark,), record = begin(tmp_path / "run", **settings)
    assert remark == f"going on from {source}, as another run"
    assert list(checkpoint_steps(tmp_path / "run" / "checkpoint")) == [10]
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == '{"step": 15}\n'
    assert record.data["skips"] == [[10, 2]]
    (entry,) = record.forks
    assert (entry["from"], entry["settings"]) == (str(source), {"optimizer.lr": [3e-3, 1e-3]})
    # It is resumed as any run, without the other one, and of a fork of it the same is true.
    shutil.rmtree(source)
    (remark,), record = begin(tmp_path / "run", metrics={"log_freq": 7}, **settings)
    assert remark == f"resuming from {tmp_path}/run/checkpoint/step-10"
    assert record.data["skips"] == [[10, 2]] and len(record.forks) == 1
    assert record.starts[1]["changes"] == {"metrics.log_freq": [1, 7]}
    settings["checkpoint"] = fork | {"fork_skip_steps": 3}
    with pytest.raises(ValueError, match="fork_skip_steps was 2 and is now 3"):
        begin(tmp_path / "run", **settings)
    after = {path: path.read_bytes() for path in parent.rglob("*") if path.is_file()}
    assert before.items() >= after.items()
    save_steps(tmp_path / "run", 15)
    again = {"fork_from": str(tmp_path / "run" / "checkpoint" / "step-15"), "fork_skip_steps": 1}
    _, record = begin(tmp_path / "again", checkpoint=again)
    assert record.data["skips"] == [[10, 2], [15, 1]]
    assert [one["step"] for one in record.forks] == [10, 15]
    card = model_card(record, step=20, title="model")
    assert "| 10 | 2 | optimizer.lr: 0.003, then 0.001 |" in card
    assert "| 15 | 1 | cpu |" in card  # the start
    assert "| 15 | 1 | optimizer.lr: 0.001, then 0.003 |" in card


def test_a_record_that_is_none_is_named(tmp_path):
    damaged, other = "is damaged: ", "its schema is not"
    for content, message in (("{", damaged), ("[" * 200_000, damaged), ("[]", other)):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(ValueError, match=rf"run\.json.*{message}"):
            RunRecord.read(tmp_path)


def test_runs_that_are_moved_are_resumed_and_another_checkpoint_is_named(begin, tmp_path):
    def resumed(folder, source):
        stage = {"initial_load_path": str(folder / source)}
        return begin(folder / "run", checkpoint=stage)[0]

    one, two, source = tmp_path / "one", tmp_path / "two", "first/checkpoint/step-10"
    begin(one / "first")
    save_steps(one / "first", 10)
    resumed(one, source)
    save_steps(one / "run", 20)
    one.rename(two)
    shutil.rmtree(two / "first")  # once there is a checkpoint it is no longer read
    assert resumed(two, source) == [f"resuming from {two}/run/checkpoint/step-20"]
    assert str(tmp_path) not in json.dumps(RunRecord.read(two / "run").identity)
    with pytest.raises(ValueError, match=f"path was {source} and is now other/checkpoint/st"):
        resumed(two, "other/checkpoint/step-10")


@pytest.mark.slow
def test_a_fork_is_the_unbroken_run_but_for_what_it_changes(
    finished, write_config, tmp_path, capsys
):
    whole, fork = curve(finished), {"fork_from": str(finished / "checkpoint" / "step-10")}
    train(write_config(tmp_path / "same", checkpoint=fork))
    assert losses(tmp_path / "same") == losses(finished)
    # One that leaves data out, at half the rate.
    run, fork = tmp_path / "run", fork | {"fork_skip_steps": 3}
    settings = {"checkpoint": fork, "optimizer": {"lr": 1.5e-3}}
    config = write_config(run, **settings)
    train(config)
    after = curve(run)
    assert [line["step"] for line in after] == list(range(1, 25)) and after[:10] == whole[:10]
    for line, before in zip(after[10:], whole[10:], strict=True):
        assert line["lr"] == pytest.approx(before["lr"] / 2)
        assert line["loss"] != before["loss"]
    data = RunRecord.read(run).data
    assert after[-1]["source_tokens"] == tokens_read(data, 24)
    # Step 11 has read what step 14 of the unbroken run has, and `anchored plan --step` says so.
    assert plan_command(PlanConfig(config=(config,), step=11)) == 0
    read = {json.loads(line)["sequence"] for line in capsys.readouterr().out.splitlines()}
    assert read == set(np.arange(4 * (10 + 3), 4 * (10 + 4)).tolist())
