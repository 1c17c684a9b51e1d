"""Two stages, ended by signals and resumed on other numbers of processes, as one curve."""

import json
import os
import signal
import subprocess
import time

import pytest
import torch
from forked_program import ForkedProgram
from training_runs import start_run, train
from transformers import AutoModelForCausalLM, AutoTokenizer

from anchored.pretrain import launch
from anchored.pretrain.run.record import checkpoint_steps, is_complete

pytestmark = pytest.mark.slow

STEPS = {"stage1": 16, "stage2": 8}


class Run:
    """One stage in a folder of its own, started by the commands of the README."""

    def __init__(self, write_config, folder, stage):
        self.folder = folder / stage
        self.num_steps = STEPS[stage]
        sections = {
            "model": {"flavor": "trial"},
            "loss": {"chunk_tokens": 32},
            "checkpoint": {"interval": 3, "async_mode": "async", "milestone_interval": 6},
            "heldout": {"interval": 8, "num_sequences": 3, "sources": ["quarry"]},
            "lr_scheduler": {"total_steps": self.num_steps},
        }
        if stage == "stage2":
            first = folder / "stage1" / "checkpoint" / f"step-{STEPS['stage1']}"
            sections["checkpoint"]["initial_load_path"] = str(first)
            sections["lr_scheduler"] |= {"warmup_steps": 0, "decay_type": "linear"}
            sections["optimizer"] = {"lr": 1e-3}
            sections["data"] = {"seed": 8, "sources": {"quarry": 0.7, "orchard": 0.3}}
        folder.mkdir(exist_ok=True)
        self.config = write_config(self.folder, steps=self.num_steps, **sections)

    def finish(self, num_processes):
        train(self.config, num_processes=num_processes)

    def end(self, number, *, after_steps):
        """Send a signal to the one process once a step is logged; its status and output."""
        (process,) = start_run(self.config)
        self.wait_for(process, after_steps)
        os.kill(process.pid, number)
        return process.wait(), process.output.read_text()

    def end_under_torchrun(self, *, after_steps):
        """SIGTERM to torchrun and its two processes' output; it sends the signal on."""
        with subprocess.Popen(
            launch._command(self.config, 2),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            self.wait_for(process, after_steps)
            process.terminate()
            return process.communicate()[1]

    def wait_for(self, process, num_steps):
        while len(self.curve()) < num_steps:
            assert process.poll() is None, "the run ended before it could be ended"
            time.sleep(0.002)

    def curve(self, name="metrics.jsonl"):
        path = self.folder / name
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def losses(self):
        return [line["loss"] for line in self.curve()]

    def last_step(self):
        return max(checkpoint_steps(self.folder / "checkpoint"))


@pytest.fixture(scope="module")
def whole(write_config, tmp_path_factory):
    """Both stages on one process, without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    runs = [Run(write_config, folder, stage) for stage in STEPS]
    for run in runs:
        run.finish(1)
    return runs


@pytest.fixture(scope="module")
def broken(write_config, tmp_path_factory):
    """The same, ended by both signals in the middle and resumed on other numbers of processes."""
    folder = tmp_path_factory.mktemp("broken")
    first, second = (Run(write_config, folder, stage) for stage in STEPS)
    errors = first.end_under_torchrun(after_steps=2)
    step = first.last_step()
    assert f"stopped by a signal after step {step} of 16" in errors
    assert is_complete(first.folder / "checkpoint" / f"step-{step}")
    status, errors = first.end(signal.SIGKILL, after_steps=step + 4)
    assert status == -signal.SIGKILL
    assert f"resuming from {first.folder}/checkpoint/step-{step}" in errors
    first.finish(2)
    status, _ = second.end(signal.SIGTERM, after_steps=2)
    assert status == 0
    second.finish(2)
    return [first, second]


def test_losses_are_those_of_the_run_without_interruption(whole, broken):
    for one, other in zip(broken, whole, strict=True):
        assert len(one.losses()) == one.num_steps
        assert one.losses() == pytest.approx(other.losses(), abs=2e-5)
        assert f"{one.losses()[-1]:.4f}" == f"{other.losses()[-1]:.4f}"


def test_held_out_losses_are_the_same_too(whole, broken):
    for one, other in zip(broken, whole, strict=True):
        lines = [run.curve("heldout.jsonl") for run in (one, other)]
        assert [line["step"] for line in lines[0]] == [line["step"] for line in lines[1]]
        for mine, theirs in zip(*lines, strict=True):
            assert mine["losses"] == pytest.approx(theirs["losses"], abs=2e-5)


def test_milestones_are_there(broken):
    first, _ = broken
    assert {6, 12, 16} <= checkpoint_steps(first.folder / "checkpoint").keys()


def test_the_exported_model_generates(broken, corpus, tmp_path):
    checkpoint = broken[1].folder / "checkpoint" / f"step-{STEPS['stage2']}"
    paths = {
        "checkpoint": checkpoint,
        "tokenizer": corpus.tokenizer_folder,
        "output": tmp_path / "m",
    }
    options = [word for name, path in paths.items() for word in (f"--{name}", str(path))]
    words = ["export", "--average-last", "2", *options]
    ForkedProgram("anchored.tools.cli", words, tmp_path / "output.txt").wait_for_success()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "m")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    inputs = tokenizer("the keeper of", return_tensors="pt")
    with torch.no_grad():
        output = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    assert tokenizer.decode(output[0]).startswith("the keeper of ")
    card = (tmp_path / "m" / "README.md").read_text()
    assert "## Stage 1: 16 steps" in card and "## Stage 2: 8 steps" in card
