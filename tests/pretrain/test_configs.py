"""The shipped configs of TinyComma say what the paper says; mistakes in a config are one line."""

import os
import subprocess
from pathlib import Path

import pytest
from forked_program import ForkedProgram

from anchored.pretrain.job_config import load_job_config
from anchored.pretrain.plan.data_config import DataSource, load_mixture
from anchored.pretrain.plan.stages import missing_sources, mixture_specs, plan_stage
from anchored.wrong_words import Refused

CONFIGS = Path(__file__).parents[2] / "configs" / "pretrain"


def load(name):
    return load_job_config(["--job.config_file", str(CONFIGS / f"{name}.toml")])


@pytest.fixture(scope="module")
def stages():
    return load("tinycomma-1.8b-stage1"), load("tinycomma-1.8b-stage2")


def test_both_stages_are_those_of_the_paper(stages):
    schedules = (("cosine", 1000, 3e-3), ("linear", 0, 1e-3))
    for stage, (decay, warmup, rate) in zip(stages, schedules, strict=True):
        training, optimizer, schedule = stage.training, stage.optimizer, stage.lr_scheduler
        assert training.global_batch_size * training.seq_len == 2**22
        assert training.global_batch_size % (8 * training.local_batch_size) == 0
        assert (schedule.decay_type, schedule.warmup_steps) == (decay, warmup)
        assert (optimizer.lr, optimizer.beta1, optimizer.beta2) == (rate, 0.9, 0.95)
    first, second = stages
    assert first.optimizer.weight_decay == 0.033
    last = Path(first.job.dump_folder) / "checkpoint" / f"step-{first.training.steps}"
    assert Path(second.checkpoint.initial_load_path) == last
    assert second.job.dump_folder != first.job.dump_folder
    for section in ("parallelism", "compile", "loss", "metrics", "spike_guard"):
        assert getattr(first, section) == getattr(second, section)


@pytest.fixture(scope="module")
def mixture():
    return load_mixture(CONFIGS / "common_pile.toml")


def test_the_common_pile_has_31_sources_with_pinned_revisions(mixture):
    assert len(mixture.sources) == len(missing_sources(mixture_specs(mixture)[0].data)) == 31
    for source in mixture.sources:
        assert source.dataset == f"common-pile/{source.name}_filtered"
        assert len(source.revision) == 7 and int(source.revision, 16) >= 0
    assert sum(source.weights["stage1"] for source in mixture.sources) == pytest.approx(1)


def test_the_plan_is_the_papers_and_that_of_both_runs(mixture, stages):
    specs = mixture_specs(mixture)
    first, second = map(plan_stage, specs)  # no shards are there
    shares = {source.name: round(source.share, 12) for source in second.sources}
    assert shares == {"wikimedia": 0.7, "doab": 0.15, "data_provenance_initiative": 0.15}
    # Stage 1 hardly repeats anything, stage 2 its smallest source.
    epochs = [{source.name: source.epochs for source in plan.sources} for plan in (first, second)]
    assert epochs[0]["wikimedia"] == pytest.approx(0.955, abs=0.001)
    assert epochs[1]["data_provenance_initiative"] == pytest.approx(2.478, abs=0.001)
    for spec, job in zip(specs, stages, strict=True):
        for setting in ("sources", "seed", "weight_unit", "max_epochs"):
            assert getattr(spec.data, setting) == getattr(job.data, setting)
        training = job.training
        sizes = (training.steps, training.seq_len, training.global_batch_size)
        assert (spec.num_steps, spec.seq_len, spec.sequences_per_step) == sizes


@pytest.mark.slow
def test_the_model_is_built_and_sharded_over_two_nodes(tmp_path):
    name, num_processes = "tinycomma-1.8b-stage1-multinode", 16
    # Another process: fake processes are the only ones of torch.distributed in theirs.
    words = ["pretrain", "--dry-run", "--gpus", str(num_processes), "--config", name]
    program = ForkedProgram("anchored.tools.cli", words, tmp_path / "output.txt")
    model, memory, time, end = program.wait_for_success().splitlines()
    share = f"{1_758_562_304 // 8:,}"
    assert f"1,758,562,304 parameters, {share} of them on each of {num_processes}" in model
    # layers, embedding, norm, output, the whole
    assert model.endswith(f"in {24 + 4} modules with placements (Replicate(), Shard(dim=0))")
    assert "71.8 GiB" in memory and "logits" in memory
    assert "48,560 tokens/s a GPU" in time and "2.32 days for 37,193 steps" in time
    assert end == "nothing of this was measured"


def test_the_slurm_scripts_are_valid_and_search_every_source(mixture, tmp_path):
    subprocess.run(["bash", "-n", str(CONFIGS / "slurm" / "pretrain.sbatch")], check=True)
    program = tmp_path / "anchored"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    words = ["bash", str(CONFIGS / "slurm" / "tokenize.sh"), "search", "works"]
    path = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    lines = subprocess.check_output(words, cwd=CONFIGS.parents[1], env=path, text=True).splitlines()
    for line, source in zip(lines, mixture.sources, strict=True):
        assert line == (
            "decontaminate --mixture configs/pretrain/common_pile.toml --source "
            f"{source.name} --against works --output data/decontamination"
        )


# The config of a run: defaults, file, arguments.


def load_text(tmp_path, text, *arguments):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return load_job_config(["--job.config_file", str(path), *arguments])


def test_file_goes_over_defaults_and_arguments_over_the_file(tmp_path):
    text = "[training]\nsteps = 7\nseq_len = 128\n[data]\nseed = 4\n[[data.sources]]\n"
    text += 'name = "a"\npath = "x/a"\nweight = 2\n'
    config = load_text(tmp_path, text, "--training.steps", "9")
    assert (config.training.steps, config.training.seq_len) == (9, 128)
    assert config.data.sources == (DataSource(name="a", path="x/a", weight=2),)
    assert (config.data.seed, config.data.weight_unit) == (4, "tokens")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[training]\nstps = 7\n", r"unknown config key training\.stps \(did you mean steps\?\)$"),
        ("[data]\n[[data.sources]]\nname = 'a'\n", r"data\.sources\[0\]\.path is missing$"),
        ("[job]\nverbose = 1\n", r"job\.verbose must be true or false, got 1$"),
        ("[checkpoint]\nkeep_latest_k = 1\n", r"keep_latest_k must be 0 \(all\) or at least 2"),
        (
            f"[data]\nmixture = '{CONFIGS}/common_pile.toml'\nstage = 'three'\n",
            r"has no stage three; known: stage1",
        ),
        ("[training]\nseq_len = 0\n", r"training\.seq_len must be positive, got 0$"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_it(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as error:
        load_text(tmp_path, text)
    assert "\n" not in str(error.value)


def test_an_unknown_argument_is_a_wrong_word(tmp_path):
    message = r"^there is no option --training\.stps; anchored\.pretrain --h"
    with pytest.raises(Refused, match=message):
        load_text(tmp_path, "", "--training.stps", "3")
