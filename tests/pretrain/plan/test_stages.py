"""The Common Pile's mixture: what the paper says, and shares that hold at every step."""

from pathlib import Path

import pytest

from anchored.pretrain.job_config import load_job_config
from anchored.pretrain.plan.data_config import load_mixture
from anchored.pretrain.plan.stages import missing_sources, mixture_specs, plan_stage

CONFIGS = Path(__file__).parents[3] / "configs" / "pretrain"


@pytest.fixture(scope="module")
def mixture():
    return load_mixture(CONFIGS / "common_pile.toml")


@pytest.fixture(scope="module")
def stages(mixture):
    return list(map(plan_stage, mixture_specs(mixture)))  # no shards are there


def test_there_are_31_sources_with_pinned_revisions(mixture):
    assert len(mixture.sources) == len(missing_sources(mixture_specs(mixture)[0].data)) == 31
    for source in mixture.sources:
        assert source.dataset == f"common-pile/{source.name}_filtered"
        assert len(source.revision) == 7 and int(source.revision, 16) >= 0
    assert sum(source.weights["stage1"] for source in mixture.sources) == pytest.approx(1)


def test_the_plan_is_the_papers(stages):
    assert [stage.num_steps for stage in stages] == [37_193, 3_219]
    assert [round(stage.num_tokens / 1e9, 1) for stage in stages] == [156.0, 13.5]
    shares = {source.name: round(source.share, 12) for source in stages[1].sources}
    assert shares == {"wikimedia": 0.7, "doab": 0.15, "data_provenance_initiative": 0.15}
    sizes = {source.name: source.source_tokens for source in stages[0].sources}
    assert sizes["stackexchange"] == pytest.approx(23.9e9, rel=0.12)
    # Stage 1 hardly repeats anything, stage 2 its smallest source.
    first, second = (stage.epochs for stage in stages)
    assert first["wikimedia"] == pytest.approx(0.955, abs=0.001)
    assert max(first.values()) < 1.13
    assert second["data_provenance_initiative"] == pytest.approx(2.478, abs=0.001)


@pytest.mark.parametrize("stage", [0, 1])
def test_the_runs_read_what_the_mixture_says(mixture, stage):
    name = f"tinycomma-1.8b-stage{stage + 1}"
    job = load_job_config(["--job.config_file", str(CONFIGS / f"{name}.toml")])
    spec = mixture_specs(mixture)[stage]
    for setting in ("sources", "seed", "weight_unit", "max_epochs"):
        assert getattr(spec.data, setting) == getattr(job.data, setting)
    training = job.training
    assert spec.num_steps == training.steps
    assert (spec.seq_len, spec.sequences_per_step) == (training.seq_len, training.global_batch_size)
