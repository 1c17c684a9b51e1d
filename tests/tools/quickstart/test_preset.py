"""Presets: what they say, and the training runs that they fill in."""

import tomllib
from pathlib import Path

import pytest

from anchored.tools.quickstart import training
from anchored.tools.quickstart.corpus import Source
from anchored.tools.quickstart.preset import RUNS, Folders, load_preset, run_config

PRESETS = ("bytes", "default", "smoke", "smoke-bytes")


def test_what_an_interrupted_step_completed_is_kept(tmp_path):
    folders = Folders(tmp_path)
    folders.shards("code", "").mkdir(parents=True)
    (folders.shards("code", "") / "kept").touch()
    training.write_shards(folders, "", Source("code", "CC0-1.0", "", "1"))
    assert (folders.shards("code", "") / "kept").exists()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_load_and_their_runs_name_the_folder(name, tmp_path):
    preset = load_preset(name)
    assert len(preset.ks) >= (6 if preset.shows_effects else 3) and preset.ks == sorted(preset.ks)
    assert preset.shows_effects is ("smoke" not in name)
    for run in RUNS:
        text = run_config(preset, run, Folders(tmp_path))
        assert f'dump_folder = "{tmp_path.as_posix()}/{run}"' in text and "${" not in text


def test_an_unknown_preset_is_refused_by_name():
    known = ", ".join(PRESETS)
    with pytest.raises(ValueError, match=f"preset must be one of {known}, got 'huge'"):
        load_preset("huge")


def rendered(name: str, run: str):
    """A training run's config as it is written."""
    return tomllib.loads(run_config(load_preset(name), run, Folders(Path("out"))))


@pytest.mark.parametrize("name", PRESETS)
def test_the_safe_model_never_sees_the_extra_source_or_the_works(name):
    runs = {run: rendered(name, run)["data"]["sources"] for run in RUNS}
    weights = {run: {s["name"]: s["weight"] for s in sources} for run, sources in runs.items()}
    stage1, stage2, risky = (weights[run] for run in ("safe-stage1", "safe-stage2", "risky"))
    assert set(risky) - set(stage1) == {"numerics", "works"}
    assert len(stage1) >= 3 and set(stage2) < set(stage1) < set(risky)
    for each in weights.values():
        assert sum(each.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", PRESETS)
def test_the_cooldown_starts_from_the_last_checkpoint_of_stage_1(name):
    first, second = (rendered(name, run) for run in ("safe-stage1", "safe-stage2"))
    last = f"{first['job']['dump_folder']}/checkpoint/step-{first['training']['steps']}"
    assert second["checkpoint"]["initial_load_path"] == last
    schedule = second["lr_scheduler"]
    assert (schedule["warmup_steps"], schedule["decay_type"]) == (0, "linear")


def test_a_run_reads_the_shards_of_its_models_own_tokenizer():
    for name, owners in {"smoke": ("", ""), "smoke-bytes": ("safe/", "risky/")}.items():
        for run, owner in zip(("safe-stage2", "risky"), owners, strict=True):
            paths = {source["path"] for source in rendered(name, run)["data"]["sources"]}
            shards = Path("out").resolve() / "shards"
            assert f"{shards}/{owner}topics" in paths
