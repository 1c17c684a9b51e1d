"""The shipped configs of TinyComma say what the paper says."""

import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from forked_program import ForkedProgram

from anchored.pretrain.job_config import load_job_config
from anchored.pretrain.model.tinycomma import TinyComma, model_args
from anchored.pretrain.plan.data_config import load_mixture
from anchored.pretrain.plan.stages import missing_sources, mixture_specs, plan_stage
from anchored.pretrain.run.memory import estimate_memory
from anchored.pretrain.run.preflight import check_memory

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
    assert (first.num_steps, second.num_steps) == (37_193, 3_219)
    assert [round(plan.num_tokens / 1e9, 1) for plan in (first, second)] == [156.0, 13.5]
    shares = {source.name: round(source.share, 12) for source in second.sources}
    assert shares == {"wikimedia": 0.7, "doab": 0.15, "data_provenance_initiative": 0.15}
    sizes = {source.name: source.source_tokens for source in first.sources}
    assert sizes["stackexchange"] == pytest.approx(23.9e9, rel=0.12)
    # Stage 1 hardly repeats anything, stage 2 its smallest source.
    assert first.epochs["wikimedia"] == pytest.approx(0.955, abs=0.001)
    assert max(first.epochs.values()) < 1.13
    assert second.epochs["data_provenance_initiative"] == pytest.approx(2.478, abs=0.001)
    for spec, job in zip(specs, stages, strict=True):
        for setting in ("sources", "seed", "weight_unit", "max_epochs"):
            assert getattr(spec.data, setting) == getattr(job.data, setting)
        training = job.training
        sizes = (training.steps, training.seq_len, training.global_batch_size)
        assert (spec.num_steps, spec.seq_len, spec.sequences_per_step) == sizes


NAMES = sorted(path.stem for path in CONFIGS.glob("tinycomma*.toml"))


@pytest.mark.parametrize("name", NAMES)
def test_every_file_that_a_config_names_exists_or_is_explained(name):
    text = (CONFIGS / f"{name}.toml").read_text()
    for path in re.findall(r"configs/[\w./-]+", text):
        assert (CONFIGS.parents[1] / path).is_file(), path
    head = (CONFIGS / "tinycomma-1.8b-stage1.toml").read_text().split("[job]")[0]
    for path in re.findall(r'= "(data/[\w./-]+)"', text):
        documented = re.sub(r"common_pile/\w+", "common_pile/NAME", path)
        assert f"#   {documented} " in head, path


def test_variants_are_the_first_stage_but_for_speed(stages):
    variants = [load(name) for name in NAMES if name.count("-") > 2]
    assert len(variants) == 3
    for variant in variants:
        assert variant.data == stages[0].data
        assert variant.optimizer == stages[0].optimizer
        assert variant.training.global_batch_size == 2048


@pytest.mark.parametrize(
    ("name", "num_gpus", "gibibytes"),
    [
        ("tinycomma-1.8b-stage1", 8, 131),  # H200
        ("tinycomma-1.8b-stage2", 8, 131),
        ("tinycomma-1.8b-stage1-multinode", 16, 131),
        ("tinycomma-1.8b-stage1-1gpu", 1, 79),  # H100
    ],
)
def test_a_step_is_estimated_to_fit_into_a_gpu(name, num_gpus, gibibytes, monkeypatch):
    config = load(name)
    num_shards = num_gpus // config.parallelism.data_parallel_replicate_degree
    with torch.device("meta"):
        model = TinyComma(model_args(config))
    estimate = estimate_memory(config, model, num_shards=num_shards)
    size = gibibytes << 30
    gpu = SimpleNamespace(name="", total_memory=size)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: gpu)
    check_memory(config, estimate)
    assert 0.4 * size < estimate.total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_processes"),
    [("tinycomma-1.8b-stage1", 8), ("tinycomma-1.8b-stage1-multinode", 16)],
)
def test_the_model_is_built_and_sharded_over_eight_gpus(name, num_processes, tmp_path):
    # A process of its own: fake processes are the only ones of torch.distributed in theirs.
    words = ["pretrain", "--dry-run", "--gpus", str(num_processes), "--config", name]
    program = ForkedProgram("anchored.tools.cli", words, tmp_path / "output.txt")
    model, memory, time, end = program.wait_for_success().splitlines()
    each = f"{1_758_562_304 // 8:,}"
    assert f"1,758,562,304 parameters, {each} of them on each of {num_processes}" in model
    replicate = "Replicate(), " if num_processes == 16 else ""
    placements = f"({replicate}Shard(dim=0){'' if replicate else ','})"
    # layers, embedding, norm, output, the whole
    assert model.endswith(f"in {24 + 4} modules with placements {placements}")
    assert "71.8 GiB" in memory and "logits" in memory
    days = "4.65" if num_processes == 8 else "2.32"
    assert "48,560 tokens/s a GPU" in time and f"{days} days for 37,193 steps" in time
    assert end == "nothing of this was measured"


def test_the_slurm_scripts_are_valid_and_search_and_tokenize_every_source(mixture, tmp_path):
    training = CONFIGS / "slurm" / "pretrain.sbatch"
    subprocess.run(["bash", "-n", str(training)], check=True)
    assert "-m anchored.pretrain --job.config_file" in training.read_text()
    program = tmp_path / "anchored"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)

    def printed(*words):
        return subprocess.run(
            ["bash", str(CONFIGS / "slurm" / "tokenize.sh"), *words],
            cwd=CONFIGS.parents[1],
            env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()

    names = [source.name for source in mixture.sources]
    source = "--mixture configs/pretrain/common_pile.toml --source"
    assert printed("search", "works") == [
        f"decontaminate {source} {name} --against works --output data/decontamination"
        for name in names
    ]
    assert printed("write", "TOKENIZER") == [
        f"tokenize {source} {name} --tokenizer TOKENIZER --output data/common_pile/{name} "
        f"--leave-out data/decontamination/{name}.jsonl"
        for name in names
    ]
