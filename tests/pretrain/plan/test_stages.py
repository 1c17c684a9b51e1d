"""The Common Pile's mixture: what the paper says, and shares that hold at every step."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from anchored.pretrain.job_config import load_job_config
from anchored.pretrain.model.tinycomma import flavors
from anchored.pretrain.plan.data_config import load_mixture
from anchored.pretrain.plan.order import Mixture
from anchored.pretrain.plan.stages import (
    check_epochs,
    estimate_run,
    missing_sources,
    mixture_specs,
    plan_stage,
)

CONFIGS = Path(__file__).parents[3] / "configs" / "pretrain"


@pytest.fixture(scope="module")
def mixture():
    return load_mixture(CONFIGS / "common_pile.toml")


@pytest.fixture(scope="module")
def stages(mixture):
    specs = mixture_specs(mixture)
    return [plan_stage(spec, [source.name for source in spec.data.sources]) for spec in specs]


@pytest.mark.parametrize("stage", [0, 1])
def test_every_source_is_within_three_sequences_of_its_share_at_every_step(mixture, stage):
    spec = mixture_specs(mixture)[stage]
    interleaving = Mixture([Fraction(repr(source.weight)) for source in spec.data.sources])
    # Python's integers: sequences times weights of 17 digits do not fit in 64 bits.
    num_sequences = spec.sequences_per_step * np.arange(1, spec.num_steps + 1).astype(object)
    counts = interleaving.counts(num_sequences)
    assert (sum(counts) == num_sequences).all()
    total = sum(interleaving.weights)
    for count, weight in zip(counts, interleaving.weights, strict=True):
        # Exactly, in integers: |count - n w / W| <= 3 as |count W - n w| <= 3 W.
        assert abs(count * total - num_sequences * weight).max() <= 3 * total


def test_there_are_31_sources_with_pinned_revisions(mixture):
    assert len(mixture.sources) == len(missing_sources(mixture_specs(mixture)[0].data)) == 31
    for source in mixture.sources:
        assert source.dataset == f"common-pile/{source.name}_filtered"
        assert len(source.revision) == 7 and int(source.revision, 16) >= 0
    assert sum(source.weights["stage1"] for source in mixture.sources) == pytest.approx(1)


def test_the_plan_is_the_papers_and_says_which_sizes_are_estimated(stages):
    assert [stage.num_steps for stage in stages] == [37_193, 3_219]
    assert [round(stage.num_tokens / 1e9, 1) for stage in stages] == [156.0, 13.5]
    shares = {source.name: round(source.share, 12) for source in stages[1].sources}
    assert shares == {"wikimedia": 0.7, "doab": 0.15, "data_provenance_initiative": 0.15}
    origins = [source.size.origin for source in stages[0].sources]
    assert (origins.count("estimated"), origins.count("counted")) == (8, 23)
    sizes = {source.name: source.size.num_tokens for source in stages[0].sources}
    assert sizes["stackexchange"] == pytest.approx(23.9e9, rel=0.12)
    # Stage 1 hardly repeats anything, stage 2 its smallest source.
    first, second = (stage.epochs for stage in stages)
    assert first["wikimedia"] == pytest.approx(0.955, abs=0.001)
    assert max(first.values()) < 1.13
    assert second["data_provenance_initiative"] == pytest.approx(2.478, abs=0.001)


def test_more_epochs_than_allowed_are_refused(mixture, stages):
    epochs = [stage.epochs for stage in stages]
    check_epochs(epochs, mixture.max_epochs)
    message = r"source data_provenance_initiative would be read 3.46 times, more than max_epochs 3"
    with pytest.raises(ValueError, match=message):
        check_epochs(epochs, 3)


def test_five_days_on_eight_gpus(mixture, stages):
    estimate = estimate_run(stages, mixture)
    assert estimate.total_days == pytest.approx(5.05, abs=0.005)
    assert estimate.tokens_per_s_per_gpu == pytest.approx(48_560, abs=5)
    assert mixture.model.flops_per_token(2048) == pytest.approx(1.0183e10, rel=1e-4)
    # Whole, the sources would take 1,728 GB; the stages read 678 GB, some of them twice.
    assert estimate.shards_bytes / 1e9 == pytest.approx(648, abs=1)
    assert estimate.checkpoint_bytes == 12 * 1_758_562_304
    assert estimate.state_bytes_per_gpu == 2 * 1_758_562_304
    args, model = flavors()["tinycomma-1.8b"], mixture.model
    assert (model.num_layers, model.hidden_size) == (args.n_layers, args.dim)
    assert model.num_embedding_parameters == args.vocab_size * args.dim


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
