"""The shipped configs of TinyComma say what the paper says."""

from fractions import Fraction
from pathlib import Path

import pytest

from anchored.pretrain.job_config import load_job_config
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


def test_both_stages_train_the_model_of_the_paper(stages):
    for stage in stages:
        assert stage.model.flavor == "tinycomma-1.8b"
        assert stage.model.flavor in flavors()
