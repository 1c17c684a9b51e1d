"""Runs that cannot work, or would train the wrong thing, are refused before they start."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from training_runs import save_steps

from anchored.pretrain.run.checkpoints import SEAL_NAME
from anchored.pretrain.run.record import RunRecord
from anchored.pretrain.tokens.shards import Manifest, TokenShards

FLOAT8, FILTER = ["quantize.linear.float8"], {"filter_fqns": ["output"]}


@pytest.fixture
def check(begin, tmp_path):
    """The remarks on a tiny run in tmp_path/run, with sections of its config changed."""
    return lambda *, folder="run", **changes: begin(tmp_path / folder, **changes)[0]


def refusal(check, **arguments):
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        check(**arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_sound_run_leaves_its_record_and_is_known_by_it(check, tmp_path, corpus):
    assert check(model={"tokenizer": str(corpus.tokenizer_folder)}) == []
    record = RunRecord.read(tmp_path / "run")
    assert (record.model["hidden_size"], record.model["vocab_size"]) == (32, 300)
    save_steps(tmp_path / "run", 5)
    weights = {"harbour": 1.0, "orchard": 1.0, "quarry": 1.0}
    message = refusal(check, data={"sources": weights | {"quarry": 2.0}})
    assert "another run (data.sources.quarry.weight was 1.0 and is now 2.0)" in message
    message = refusal(check, data={"sources": dict(reversed(weights.items()))})
    assert "another run (data.plan_hash was " in message  # as their order is another


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": {"flavor": "small"}}, "model.flavor must be one of smoke, trial, narrow"),
        ({"training": {"enable_cpu_offload": True}}, "cpu_offload must be false, as no run here"),
        ({"model": {"converters": FLOAT8}}, 'must hold "output"'),
        (
            {"model": {"converters": FLOAT8}, "quantize": {"linear": {"float8": FILTER}}},
            "products in float8 need a GPU of compute capability 8.9 or higher",
        ),
        ({"activation_checkpoint": {"mode": "memory_budget"}}, "memory_budget needs compile.enab"),
        ({"model": {"tokenizer": "none"}}, "model.tokenizer: there is no file or folder /"),
        ({"num_processes": 4}, "got 4 and 2 * 4"),
        ({"without": "debug = {seed = 3}\n"}, "debug.seed is not set"),
        ({"steps": 25}, "lr_scheduler.total_steps 24 is below training.steps 25"),
        (
            {"lr_scheduler": {"warmup_steps": 13, "decay_ratio": 0.5}},
            "lr_scheduler.warmup_steps 13 and decay_ratio 0.5 are more than the schedule of 24",
        ),
        ({"checkpoint": {"milestone_interval": 12}}, "12 is not a multiple of checkpoint.interv"),
        ({"parallelism": {"data_parallel_replicate_degree": 2}}, "do not make 1 processes"),
    ],
)
def test_a_run_that_cannot_work_is_refused(check, arguments, message):
    assert message in refusal(check, **arguments)


def test_a_machine_that_is_too_small_is_refused(check, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert refusal(check, job={"needs_gpu": True}).endswith("torch sees no GPU on this machine")
    gpu = SimpleNamespace(name="NVIDIA Small", total_memory=1 << 20)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    message, unchecked = refusal(check), {"check_memory": False}
    assert "and NVIDIA Small has 0.0 GiB: lower training.local_batch_size" in message
    # A checkpoint of the smoke model is 0.5 MB.
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1_500_000))
    settings = {"interval": 5, "keep_latest_k": 2, "milestone_interval": 10}
    message = refusal(check, job=unchecked, checkpoint=settings)
    assert message.startswith("5 checkpoints of 0.0 GB will be kept")
    assert check(job=unchecked, checkpoint={"interval": 24, "keep_latest_k": 2}) == []


def test_another_tokenizer_is_refused_in_the_model_and_in_held_out_shards(check, corpus, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    message = refusal(check, model={"tokenizer": str(tmp_path)})
    assert "tokenizer.json is not the tokenizer of the run: its sha256 is 44136fa355b3" in message
    other = shutil.copytree(corpus.source("quarry"), tmp_path / "other")
    manifest = replace(Manifest.read(other), tokenizer_sha256="0")
    (other / "manifest.json").write_text(manifest.to_json())
    message = refusal(check, heldout={"num_sequences": 3, "sources": [str(other)]})
    assert "other were tokenized differently: tokenizer" in message


# Stage 2: starting from another run's weights.


@pytest.fixture
def first_stage(check, tmp_path):
    check(folder="first")
    save_steps(tmp_path / "first", 24)
    return tmp_path / "first" / "checkpoint" / "step-24"


def test_the_epochs_of_stage_one_count_in_stage_two(check, first_stage, corpus):
    # Stage 1 reads 24 * 4 / 3 sequences of it, this one 3 * 4.
    num_windows = TokenShards.open(corpus.source("quarry")).num_tokens // 32
    limit = {"max_epochs": 43 / num_windows, "sources": {"quarry": 1.0}}
    stage = {"initial_load_path": str(first_stage)}
    message = refusal(check, steps=3, checkpoint=stage, data=limit)
    assert message.startswith(f"source quarry would be read {44 / num_windows:.2f} times")
    assert check(steps=3, folder="alone", data=limit) == []


@pytest.fixture
def twin(corpus, tmp_path):
    """Quarry's first shard under another name."""
    folder = shutil.copytree(corpus.source("quarry"), tmp_path / "twin")
    manifest = Manifest.read(folder)
    first = manifest.shards[:1]
    manifest = replace(manifest, shards=first, num_tokens=first[0].num_tokens)
    (folder / "manifest.json").write_text(manifest.to_json())
    return folder


def test_tokens_under_two_names_are_read_by_both(check, twin, corpus):
    folders = (corpus.source("quarry"), twin)
    # 24 steps of 4, half of each
    most = sum(48 / (TokenShards.open(folder).num_tokens // 32) for folder in folders)
    data = {"sources": {"quarry": 1.0, str(twin): 1.0}, "max_epochs": most - 0.1}
    message = refusal(check, data=data)
    assert f"source quarry, which holds the same tokens as {twin}, would be read " in message
    assert f"{most:.2f} times, more than max_epochs {most - 0.1:g} allows" in message


def test_what_is_trained_on_now_or_in_the_stage_before_is_not_held_out(check, twin, first_stage):
    heldout, data = {"sources": [str(twin)]}, {"sources": {"harbour": 1.0}}
    message = refusal(check, heldout=heldout)
    assert message.startswith(
        f"heldout source {twin} is trained on: source quarry holds the tokens"
    )
    stage = {"initial_load_path": str(first_stage)}
    assert message == refusal(check, heldout=heldout, data=data, checkpoint=stage)
    assert check(heldout=heldout, data=data) == []


def test_stage_two_is_refused_from_another_model_or_without_a_whole_checkpoint(check, first_stage):
    stage = {"checkpoint": {"initial_load_path": str(first_stage)}}
    message = refusal(check, model={"flavor": "quickstart"}, **stage)
    assert "holds a model of another shape" in message
    record = RunRecord.read(first_stage.parents[1])
    replace(record, bos_id=None).write(first_stage.parents[1])
    message = refusal(check, **stage)
    assert "trained on data that was tokenized differently: begin token None and 298" in message
    (first_stage / ".metadata").unlink()
    assert refusal(check, **stage).endswith("step-24 is not whole: it has no .metadata")
    shutil.rmtree(first_stage)
    message = refusal(check, **stage)
    assert f"checkpoint.initial_load_path: there is no file or folder {first_stage}" in message


def test_a_run_that_would_train_nothing_is_refused_but_for_one_that_is_finished(
    check, first_stage, tmp_path
):
    message = "leaves nothing to train after the checkpoint of step 24"
    assert message in refusal(check, steps=23, folder="first")
    fork = {"fork_from": str(first_stage)}
    assert f"{message}, {first_stage}" in refusal(check, steps=24, checkpoint=fork)
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert "resuming from" in check(steps=24, folder="first")[0]


# Resuming this very run.


def test_shards_changed_in_place_are_refused(check, twin):
    shard = twin / "tokens-00000.bin"
    tokens = shard.read_bytes()
    shard.write_bytes(tokens[8:] + tokens[:8])
    sections = {"heldout": {"sources": [str(twin)]}, "data": {"sources": {"harbour": 1.0}}}
    assert "twin/tokens-00000.bin has sha256 " in refusal(check, **sections)


@pytest.fixture
def checkpoints(check, tmp_path):
    """The folder of a run that was killed after step 15."""
    check()
    save_steps(tmp_path / "run", 5, 10, 15)
    return tmp_path / "run" / "checkpoint"


def test_torn_checkpoints_are_set_aside_and_the_last_whole_one_resumed(check, checkpoints):
    (checkpoints / "step-10" / SEAL_NAME).unlink()
    data = checkpoints / "step-15" / "__0_0.distcp"
    data.write_bytes(bytes([data.read_bytes()[0] ^ 64]) + data.read_bytes()[1:])
    resuming = f"resuming from {checkpoints}/step-5"
    assert check() == [
        "set aside step-15.torn (__0_0.distcp is not what was written); "
        f"step-10.torn (it has no {SEAL_NAME}): {resuming}"
    ]
    assert check(num_processes=2) == [resuming]


def test_a_run_that_had_checkpoints_does_not_start_from_0(check, checkpoints, tmp_path):
    for folder in checkpoints.iterdir():
        (folder / "__0_0.distcp").rename(tmp_path / folder.name)
    message = refusal(check)
    assert "holds no whole checkpoint (step-15: it has no __0_0.distcp; step-10: " in message
    assert "does not start from 0" in message
    (tmp_path / "step-10").rename(checkpoints / "step-10" / "__0_0.distcp")  # mended
    assert check()[0].endswith(f"resuming from {checkpoints}/step-10")


def test_a_run_killed_in_its_first_save_begins_again_with_stage_one(check, tmp_path, first_stage):
    stage = {"checkpoint": {"initial_load_path": str(first_stage)}}
    check(**stage)
    folder = tmp_path / "run" / "checkpoint"
    save_steps(tmp_path / "run", 5)
    (folder / "step-5" / SEAL_NAME).unlink()
    remark = f"no complete checkpoint, set aside as {folder}.torn: starting from the beginning"
    assert check(**stage) == [remark]
    assert not folder.exists() and (tmp_path / "run" / "checkpoint.torn" / "step-5").is_dir()
