"""Going back to an earlier step: what is kept, moved and refused, and what a start follows."""

import json

import numpy as np
import pytest
import torch
from training_runs import save_weights, train
from transformers import AutoModelForCausalLM

from anchored.pretrain.export import export_checkpoint
from anchored.pretrain.job_config import load_job_config
from anchored.pretrain.plan.data_plan import DataPlan, data_record, skipped_steps, tokens_read
from anchored.pretrain.run.checkpoints import SEAL_NAME, checkpoint_steps
from anchored.pretrain.run.preflight import check_run
from anchored.pretrain.run.record import RunRecord, lock_run
from anchored.pretrain.run.rollback import roll_back
from anchored.pretrain.run.start import follow_forks
from anchored.tools.commands.training.plan import run as plan_command
from anchored.tools.commands.training.rollback import run as rollback_command
from anchored.tools.commands.training.training_options import PlanConfig, RollbackConfig


@pytest.fixture
def run(write_config, tmp_path):
    """A run with checkpoints of steps 5, 10, 15, none of which a model could be read from."""
    config = load_job_config(["--job.config_file", str(write_config(tmp_path / "run"))])
    check_run(config, num_processes=1)
    for step in (5, 10, 15):
        save_weights({"a": torch.zeros(3)}, tmp_path / "run" / "checkpoint" / f"step-{step}")
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 15}\n')
    return tmp_path / "run"


def restarted(write_config, run, **sections):
    """What the next start of the run says, and its record."""
    path = write_config(run, **sections)
    config = follow_forks(load_job_config(["--job.config_file", str(path)]))
    return check_run(config, num_processes=1), RunRecord.read(run), config


def test_later_steps_are_moved_aside_and_a_plain_start_follows(run, write_config):
    roll_back(run, step=5, skip_steps=2, settings={"optimizer.lr": "1e-3"})
    assert list(checkpoint_steps(run / "checkpoint")) == [5]
    aside = {path.name for path in (run / "abandoned-1").iterdir()}
    assert aside == {"step-10", "step-15", "run.json", "metrics.jsonl"}
    remarks, record, config = restarted(write_config, run)
    assert remarks == [f"resuming from {run}/checkpoint/step-5"]
    assert config.optimizer.lr == record.identity["optimizer.lr"] == 1e-3
    assert record.data["skips"] == [[5, 2]]
    with pytest.raises(ValueError, match=r"optimizer.lr was 0.001 and is now 0.002"):
        restarted(write_config, run, optimizer={"lr": 2e-3})
    restarted(write_config, run, optimizer={"lr": 1e-3})  # the config may say so too


def test_going_back_again_undoes_what_was_decided_from_there_on(run, write_config):
    roll_back(run, step=10, skip_steps=4, settings={"optimizer.lr": "1e-3"})
    roll_back(run, step=10, skip_steps=1, settings={"lr_scheduler.warmup_steps": "2"})
    _, record, config = restarted(write_config, run)
    assert config.optimizer.lr == 3e-3 and config.lr_scheduler.warmup_steps == 2
    assert record.data["skips"] == [[10, 1]]
    roll_back(run, step=5)
    _, record, config = restarted(write_config, run)
    assert config.lr_scheduler.warmup_steps == 4 and "skips" not in record.data
    assert [path.name for path in sorted(run.glob("abandoned-*"))] == [
        "abandoned-1",
        "abandoned-2",
        "abandoned-3",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": 7}, "has no checkpoint of step 7; there are: 5, 10, 15"),
        ({"step": 5, "skip_steps": -1}, "skip_steps must be at least 0, got -1"),
        ({"step": 5, "settings": {"data.seed": "1"}}, "data.seed cannot change within a run"),
        ({"step": 5, "settings": {"optimizer.lr": "fast"}}, "optimizer.lr is 0.003, which 'fast'"),
        ({"step": 5, "settings": {"optimizer.lr": "1 2"}}, "optimizer.lr: '1 2' is no value of"),
        ({"step": 15}, "step-15 is not whole: it has no"),
    ],
)
def test_what_cannot_be_gone_back_to_is_refused_and_nothing_changed(run, arguments, message):
    (run / "checkpoint" / "step-15" / SEAL_NAME).unlink()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=message):
        roll_back(run, **arguments)
    after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    changed = {path for path in before | after if before.get(path) != after.get(path)}
    assert changed <= {run / "lock"}


def test_a_run_at_work_is_not_gone_back_under(run):
    with lock_run(run), pytest.raises(ValueError, match=r"is in use by process .* on .*: one run"):
        roll_back(run, step=5)
    roll_back(run, step=5)


def test_a_step_to_load_is_refused_with_the_command(run, write_config):
    with pytest.raises(ValueError, match="`anchored rollback RUN --step 5` goes back for good"):
        restarted(write_config, run, checkpoint={"load_step": 5})


def test_a_setting_without_a_value_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"set must be SECTION.KEY=VALUE, got 'optimizer.lr'"):
        RollbackConfig(run=tmp_path, step=5, set=("optimizer.lr",))


def test_what_was_read_leaves_out_what_was_skipped(corpus):
    config = corpus.data_config({"harbour": 2.0, "quarry": 1.0})
    plan = DataPlan.open(config, seq_len=32, verify=False)
    data = data_record(plan, batch_size=4) | {"skips": [[3, 2], [3 + 4, 5]]}
    assert [skipped_steps(data, step) for step in (2, 3, 6, 7)] == [0, 2, 2, 7]
    for step in range(12):
        read = [t + skipped_steps(data, t) for t in range(step)]
        sequences = [4 * t + row for t in read for row in range(4)]
        sources = [plan.locate(sequence).source for sequence in sequences]
        assert list(tokens_read(data, step).values()) == [32 * sources.count(one) for one in (0, 1)]


def test_the_documents_of_a_step_are_those_that_the_run_reads(run, write_config, capsys):
    def sequences(step):
        assert plan_command(PlanConfig(config=(config,), step=step)) == 0
        lines = capsys.readouterr().out.splitlines()
        return sorted({json.loads(line)["sequence"] for line in lines})

    config = write_config(run)
    assert sequences(6) == [20, 21, 22, 23]
    roll_back(run, step=5, skip_steps=2)
    assert sequences(5) == [16, 17, 18, 19]
    assert sequences(6) == [28, 29, 30, 31]


@pytest.mark.slow
def test_a_run_gone_back_is_the_unbroken_one_but_for_what_was_forked(
    write_config, corpus, tmp_path
):
    def lines():
        return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]

    run = tmp_path / "run"
    config = write_config(run)
    train(config)
    whole = lines()
    for step in (20, 10):  # and back to 10 only in the end
        assert rollback_command(RollbackConfig(run=run, step=step)) == 0
    train(config, num_processes=2)
    assert [line["loss"] for line in lines()] == pytest.approx(
        [line["loss"] for line in whole], abs=2e-5
    )
    # A copy of the run that never went back reads the skipped data's successors at step 11.
    forked = RollbackConfig(run=run, step=10, skip_steps=3, set=("optimizer.lr=1.5e-3",))
    assert rollback_command(forked) == 0
    train(config)
    after = lines()
    assert [line["step"] for line in after] == list(range(1, 25))
    assert [line["loss"] for line in after[:10]] == pytest.approx(
        [line["loss"] for line in whole[:10]], abs=2e-5
    )
    for line, before in zip(after[10:], whole[10:], strict=True):
        assert line["lr"] == pytest.approx(before["lr"] / 2)
        assert line["loss"] != before["loss"]
    export_checkpoint(run / "checkpoint" / "step-10", corpus.tokenizer_folder, tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    data_config = load_job_config(["--job.config_file", str(config)]).data
    plan = DataPlan.open(data_config, seq_len=32, verify=False)
    read = np.stack([plan.tokens(4 * (10 + 3) + row) for row in range(4)]).astype("int64")
    rows = torch.from_numpy(read)
    with torch.no_grad():
        assert after[10]["loss"] == pytest.approx(model(rows, labels=rows).loss.item(), abs=1e-4)
    data = RunRecord.read(run).data
    assert after[-1]["source_tokens"] == tokens_read(data, 24)
    assert max(checkpoint_steps(run / "checkpoint")) == 24
    # Made longer, with the same command, it goes on along the fork.
    train(write_config(run, steps=26))
    assert lines()[:24] == after and lines()[-1]["lr"] < 1.5e-3
