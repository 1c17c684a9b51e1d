"""Whole runs as programs: one curve however they are started, killed and resumed."""

import json
import math
import os
import shutil
import signal
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from training_runs import (
    HELDOUT,
    STEPS,
    assert_same_curves,
    curve,
    losses,
    start_run,
    train,
    wait_for,
)
from transformers import AutoModelForCausalLM

from anchored.pretrain.export import export_checkpoint, llama_weights
from anchored.pretrain.run.checkpoints import OPTIMIZER, checkpoint_steps, damage
from anchored.pretrain.run.record import RunRecord
from anchored.pretrain.tokens.shards import TokenShards


def final_weights(dump_folder):
    model = RunRecord.read(dump_folder).model
    return llama_weights(dump_folder / "checkpoint" / f"step-{STEPS}", model)


def signalled(config_file, step, number, monkeypatch):
    """The exit status of a run that gets a signal in the midst of a step."""
    end_of_step = config_file.with_name(f"step-{step}-ends")
    monkeypatch.setenv("FAULTS", json.dumps({step: "long step"}))
    monkeypatch.setenv("LONG_STEP", str(end_of_step))
    (process,) = start_run(config_file, program="faulty_pretrain")
    wait_for(process, "long step")
    os.kill(process.pid, number)
    end_of_step.touch()
    return process.wait()


def test_a_run_learns_and_records_every_step(finished, corpus):
    lines = curve(finished)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5
    # Weights of 3 sigma 32**-0.5 on normed inputs: logits of deviation near 1, so the first loss
    # lies about half a nat above the uniform one.
    assert lines[0]["loss"] == pytest.approx(math.log(300) + 0.5, abs=0.35)
    assert [line["lr"] for line in lines[:4]] == pytest.approx([0.00075, 0.0015, 0.00225, 0.003])
    assert lines[-1]["lr"] < 3e-4
    read, epochs = lines[-1]["source_tokens"], lines[-1]["source_epochs"]
    assert sum(read.values()) == lines[-1]["tokens"] == STEPS * 4 * 32
    for name, num_tokens in read.items():
        assert num_tokens == 32 * 32  # three equal weights, 96 sequences
        windows = TokenShards.open(corpus.source(name)).num_tokens // 32
        assert epochs[name] == pytest.approx(32 / windows, rel=0.02)


@pytest.mark.parametrize("is_masked", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_held_out_loss_is_that_of_the_exported_model_on_all_tokens_or_on_each_document(
    finished, write_config, corpus, tmp_path, is_masked
):
    run = finished
    if is_masked:
        run = tmp_path / "run"
        settings = {"data": {"mask_documents": True}, "loss": {"chunk_tokens": 24}}
        train(write_config(run, heldout=HELDOUT, **settings), num_processes=2)
    lines = curve(run, "heldout.jsonl")
    assert [line["step"] for line in lines] == [1, 10, 20, STEPS]
    checkpoint = run / "checkpoint" / f"step-{STEPS}"
    export_checkpoint(checkpoint, corpus.tokenizer_folder, tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    for name, loss in lines[-1]["losses"].items():
        shards = TokenShards.open(corpus.source(name))
        tokens = torch.from_numpy(shards.tokens(0, 5 * 32 + 1).astype("int64"))
        eos_id = shards.manifest.eos_id if is_masked else -1
        expected = [document_losses(model, row, eos_id) for row in tokens.unfold(0, 33, 32)]
        assert loss == pytest.approx(torch.cat(expected).mean().item(), abs=1e-4)


@torch.no_grad()
def document_losses(model, row, eos_id):
    """The loss of each label of a sequence, its documents given to the model one by one."""
    starts = [0, *(index for index in range(1, 32) if row[index - 1] == eos_id), 32]
    pieces = [row[first : last + 1] for first, last in pairwise(starts)]
    return torch.cat(
        [
            F.cross_entropy(model(piece[None, :-1]).logits[0], piece[1:], reduction="none")
            for piece in pieces
        ]
    )


@pytest.mark.slow
def test_a_run_ended_by_both_signals_and_made_longer_reaches_the_very_same_weights(
    finished, write_config, tmp_path, monkeypatch
):
    run, saves = tmp_path / "run", {"interval": 5}
    config_file = write_config(run, checkpoint={"interval": STEPS}, steps=18)
    assert signalled(config_file, 6, signal.SIGTERM, monkeypatch) == 0
    saved = checkpoint_steps(run / "checkpoint")
    step = max(saved)
    assert step == len(losses(run)) < 18 and not any(map(damage, saved.values()))
    config_file = write_config(run, checkpoint=saves, steps=18)
    assert signalled(config_file, 12, signal.SIGKILL, monkeypatch) == -signal.SIGKILL
    assert 18 not in checkpoint_steps(run / "checkpoint")
    before = curve(run)[:step]
    train(config_file)
    assert len(losses(run)) == 18
    # torchtitan's default last save has no optimizer in it: it could not be made longer.
    train(write_config(run, checkpoint=saves))
    # The same timings too: steps before the checkpoint were not trained again.
    assert curve(run)[:step] == before
    assert losses(run) == losses(finished)
    torch.testing.assert_close(final_weights(run), final_weights(finished), rtol=0, atol=0)


REPLICAS = {"parallelism": {"data_parallel_replicate_degree": 2}}


@pytest.mark.parametrize(
    ("num_processes", "settings"),
    [
        pytest.param(4, REPLICAS, id="replicas-of-shards", marks=pytest.mark.slow),
        pytest.param(2, {"loss": {"chunk_tokens": 24}} | REPLICAS, id="replicas-in-chunks"),
    ],
)
def test_every_layout_of_the_processes_gives_the_curves_and_weights_of_one(
    finished, write_config, tmp_path, num_processes, settings
):
    # Rows of a step one by one: 4, 2 or 1 rounds before gradients are reduced, and clipped at 1.
    settings = {"training": {"local_batch_size": 1}, **settings}
    run = tmp_path / "run"
    train(write_config(run, heldout=HELDOUT, **settings), num_processes=num_processes)
    assert max(line["grad_norm"] for line in curve(run)) > 1
    assert_same_curves(run, finished)
    torch.testing.assert_close(final_weights(run), final_weights(finished), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_kept", [pytest.param(True, marks=pytest.mark.slow), False])
def test_the_second_stage_goes_on_with_the_moments_of_the_first_where_they_are_kept(
    finished, write_config, tmp_path, is_kept
):
    # Gradients of next to nothing: what a step leaves of the moments is what they were, decayed.
    first = finished / "checkpoint" / f"step-{STEPS}"
    saves = {"initial_load_path": str(first), "keep_moments": is_kept, "interval": 2}
    config_file = write_config(
        tmp_path / "run",
        steps=6,
        lr_scheduler={"warmup_steps": 0, "decay_type": "linear", "total_steps": 6},
        data={"seed": 8, "sources": {"quarry": 0.7, "orchard": 0.3}},
        checkpoint=saves,
        training={"max_norm": 1e-20},
    )
    train(config_file)
    before = optimizer_state(first, tmp_path)
    after = optimizer_state(tmp_path / "run" / "checkpoint" / "step-4", tmp_path)
    moments = {"exp_avg": 0.9**4, "exp_avg_sq": 0.95**4}
    assert {name.rpartition(".")[2] for name in before} >= {"step", *moments}
    for name in before:
        kind = name.rpartition(".")[2]
        if kind == "step" and is_kept:
            assert after[name] == before[name] + 4 == STEPS + 4
        elif kind in moments:
            kept = before[name] * moments[kind] * is_kept
            torch.testing.assert_close(after[name], kept, rtol=1e-5, atol=1e-12)
    # What is resumed has its moments, and not those of the first stage again.
    whole = losses(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoint" / "step-6")
    train(config_file)
    assert losses(tmp_path / "run") == whole


def optimizer_state(checkpoint, tmp_path):
    dcp_to_torch_save(checkpoint, tmp_path / "state.pt")
    return torch.load(tmp_path / "state.pt")[OPTIMIZER]
