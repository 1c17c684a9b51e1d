"""Presets: what they say, and the training runs that they fill in."""

import tomllib
from pathlib import Path

import pytest

from anchored.tools.quickstart import training
from anchored.tools.quickstart.preset import RUNS, Folders, load_preset, run_config


def test_what_an_interrupted_step_completed_is_kept(tmp_path):
    folders = Folders(tmp_path)
    folders.shards("code", "").mkdir(parents=True)
    (folders.shards("code", "") / "kept").touch()
    training._write(folders, "", "code", [], "CC0-1.0", "1")
    assert (folders.shards("code", "") / "kept").exists()


@pytest.mark.parametrize("name", ["bytes", "default", "smoke", "smoke-bytes"])
def test_presets_load_and_their_runs_name_the_folder(name, tmp_path):
    preset = load_preset(name)
    assert len(preset.ks) >= 6 and preset.ks == sorted(preset.ks)
    for run in RUNS:
        text = run_config(preset, run, Folders(tmp_path))
        assert f'dump_folder = "{tmp_path.as_posix()}/{run}"' in text and "${" not in text


def test_an_unknown_preset_is_refused_by_name():
    with pytest.raises(
        ValueError, match="preset must be one of bytes, default, smoke, smoke-bytes, got 'huge'"
    ):
        load_preset("huge")


def rendered(name: str, run: str):
    """A training run's config as it is written."""
    return tomllib.loads(run_config(load_preset(name), run, Folders(Path("out"))))


def mixtures(name: str) -> dict[str, dict[str, float]]:
    """Weights of each training run's sources."""
    runs = {run: rendered(name, run) for run in RUNS}
    return {
        run: {source["name"]: source["weight"] for source in config["data"]["sources"]}
        for run, config in runs.items()
    }


@pytest.mark.parametrize("name", ["default", "smoke", "bytes", "smoke-bytes"])
def test_the_safe_model_never_sees_the_extra_source_or_the_works(name):
    sources = mixtures(name)
    only_risky = {"numerics", "works"}
    assert only_risky.isdisjoint(sources["safe-stage1"] | sources["safe-stage2"])
    assert set(sources["risky"]) == set(sources["safe-stage1"]) | only_risky
    assert len(sources["safe-stage1"]) >= 3
    assert set(sources["safe-stage2"]) < set(sources["safe-stage1"])
    for weights in sources.values():
        assert sum(weights.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", ["default", "smoke", "bytes", "smoke-bytes"])
def test_the_cooldown_starts_from_the_last_checkpoint_of_stage_1(name):
    first = rendered(name, "safe-stage1")
    second = rendered(name, "safe-stage2")
    last = f"{first['job']['dump_folder']}/checkpoint/step-{first['training']['steps']}"
    assert second["checkpoint"]["initial_load_path"] == last
    assert second["lr_scheduler"]["warmup_steps"] == 0
    assert second["lr_scheduler"]["decay_type"] == "linear"


def test_a_run_reads_the_shards_of_its_models_own_tokenizer():
    for name, owners in {"smoke": ("", ""), "smoke-bytes": ("safe/", "risky/")}.items():
        for run, owner in zip(("safe-stage2", "risky"), owners, strict=True):
            paths = {source["path"] for source in rendered(name, run)["data"]["sources"]}
            shards = Path("out").resolve() / "shards"
            assert f"{shards}/{owner}topics" in paths
