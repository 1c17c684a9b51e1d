"""The shipped configs of TinyComma say what the paper says."""

import json
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from anchored.pretrain.capacity import check_memory
from anchored.pretrain.job_config import load_job_config
from anchored.pretrain.machine import Machine
from anchored.pretrain.memory_estimate import estimate_memory
from anchored.pretrain.model import flavors

CONFIGS = Path(__file__).parents[2] / "configs" / "pretrain"


def load(name):
    return load_job_config(["--job.config_file", str(CONFIGS / f"{name}.toml")])


@pytest.fixture(scope="module")
def stages():
    return load("tinycomma-1.8b-stage1"), load("tinycomma-1.8b-stage2")


def test_both_stages_take_four_million_tokens_a_step(stages):
    for stage in stages:
        assert stage.training.global_batch_size * stage.training.seq_len == 2**22
        assert stage.training.global_batch_size % (8 * stage.training.local_batch_size) == 0


def test_stage_one_is_a_cosine_with_warmup_over_156_billion_tokens(stages):
    stage, _ = stages
    assert stage.training.steps * 2**22 == pytest.approx(156e9, rel=1e-4)
    assert (stage.lr_scheduler.decay_type, stage.lr_scheduler.warmup_steps) == ("cosine", 1000)
    optimizer = stage.optimizer
    assert (optimizer.lr, optimizer.beta1, optimizer.beta2) == (3e-3, 0.9, 0.95)
    assert optimizer.weight_decay == 0.033


def test_stage_two_is_a_linear_cooldown_from_the_last_step_of_stage_one(stages):
    first, second = stages
    assert second.training.steps * 2**22 == pytest.approx(13.5e9, rel=1e-3)
    assert (second.lr_scheduler.decay_type, second.lr_scheduler.warmup_steps) == ("linear", 0)
    assert second.optimizer.lr == 1e-3
    last = Path(first.job.dump_folder) / "checkpoint" / f"step-{first.training.steps}"
    assert Path(second.checkpoint.initial_load_path) == last
    assert second.job.dump_folder != first.job.dump_folder


def test_stage_one_mixes_all_31_sources_and_stage_two_three(stages):
    first, second = (stage.data for stage in stages)
    assert len(first.sources) == 31
    assert float(sum(Fraction(repr(source.weight)) for source in first.sources)) == pytest.approx(1)
    shares = {source.name: source.weight for source in second.sources}
    assert shares == {"wikimedia": 0.7, "doab": 0.15, "data_provenance_initiative": 0.15}
    paths = {source.name: source.path for source in first.sources}
    assert all(paths[source.name] == source.path for source in second.sources)


NAMES = sorted(path.stem for path in CONFIGS.glob("tinycomma*.toml"))


@pytest.mark.parametrize("name", NAMES)
def test_every_value_says_where_it_comes_from(name):
    text = (CONFIGS / f"{name}.toml").read_text()
    for table in re.split(r"^(?=\[)", text, flags=re.MULTILINE):
        if table.startswith("[["):  # sources: the head of their list says it for all of them
            continue
        for line in re.findall(r"^\w+ *=.*", table, flags=re.MULTILINE):
            assert line.startswith("base") or re.search(r"# .*\((paper|lingua|ours)\)", line), line


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


def test_the_two_stages_train_alike_but_for_their_schedule(stages):
    for section in ("parallelism", "compile", "loss", "metrics", "spike_guard"):
        assert getattr(stages[0], section) == getattr(stages[1], section)


@pytest.mark.parametrize(
    ("name", "num_gpus", "gibibytes"),
    [
        ("tinycomma-1.8b-stage1", 8, 131),  # H200
        ("tinycomma-1.8b-stage2", 8, 131),
        ("tinycomma-1.8b-stage1-multinode", 16, 131),
        ("tinycomma-1.8b-stage1-1gpu", 1, 79),  # H100
    ],
)
def test_a_step_is_estimated_to_fit_into_a_gpu(name, num_gpus, gibibytes):
    config = load(name)
    args = flavors()[config.model.flavor]
    args.update_from_config(config)
    num_shards = num_gpus // config.parallelism.data_parallel_replicate_degree
    estimate = estimate_memory(config, args, num_shards=num_shards)
    gpu = Machine(
        num_processes=1, num_gpus=1, gpu_name="", gpu_memory_bytes=gibibytes << 30,
        free_disk_bytes=0,
    )  # fmt: skip
    check_memory(config, gpu, estimate)
    assert 0.4 * gpu.gpu_memory_bytes < estimate.total


SHARDED_PROGRAM = """
import json, sys
from anchored.pretrain.cpu_device import use_cpu_without_accelerator
use_cpu_without_accelerator()
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.distributed import ParallelDims
from anchored.pretrain.capacity import check_memory
from anchored.pretrain.job_config import load_job_config
from anchored.pretrain.machine import Machine
from anchored.pretrain.memory_estimate import estimate_memory
from anchored.pretrain.train_spec import train_spec

config = load_job_config(["--job.config_file", sys.argv[1]])
num_processes = int(sys.argv[2])
dist.init_process_group("fake", rank=0, world_size=num_processes, store=FakeStore())
num_replicas = config.parallelism.data_parallel_replicate_degree
dims = ParallelDims(
    dp_replicate=num_replicas, dp_shard=num_processes // num_replicas,
    cp=1, tp=1, pp=1, ep=1, etp=1, world_size=num_processes,
)
spec = train_spec()
args = spec.model_args[config.model.flavor]
args.update_from_config(config)
with torch.device("meta"):
    model = spec.parallelize_fn(spec.model_cls(args), dims, config)
print(json.dumps({
    "whole": sum(weight.numel() for weight in model.parameters()),
    "local": sum(weight.to_local().numel() for weight in model.parameters()),
    "placements": sorted({str(weight.placements) for weight in model.parameters()}),
    "sharded_modules": sum(isinstance(module, FSDPModule) for module in model.modules()),
}))
"""


@pytest.mark.parametrize(
    ("name", "num_processes"),
    [
        ("tinycomma-1.8b-stage1", 8),
        pytest.param("tinycomma-1.8b-stage1-multinode", 16, marks=pytest.mark.slow),
    ],
)
def test_the_model_is_built_and_sharded_over_eight_gpus(name, num_processes):
    command = [sys.executable, "-c", SHARDED_PROGRAM, str(CONFIGS / f"{name}.toml")]
    program = subprocess.run(
        [*command, str(num_processes)], check=True, capture_output=True, text=True
    )
    built = json.loads(program.stdout.splitlines()[-1])
    assert built["whole"] == 1_758_562_304
    assert built["local"] == built["whole"] / 8
    replicate = "Replicate(), " if num_processes == 16 else ""
    assert built["placements"] == [f"({replicate}Shard(dim=0){'' if replicate else ','})"]
    assert built["sharded_modules"] == 24 + 4  # layers, embedding, norm, output, the whole


def test_the_slurm_script_is_valid_and_starts_what_it_says(tmp_path):
    script = CONFIGS / "slurm" / "pretrain.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text()
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        assert f"{name}=" in text


def test_both_stages_train_the_model_of_the_paper(stages):
    for stage in stages:
        assert stage.model.flavor == "tinycomma-1.8b"
        assert stage.model.flavor in flavors()
