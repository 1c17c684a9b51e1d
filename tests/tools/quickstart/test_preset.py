"""Presets: what they say, and the training stages that they fill in."""

import tomllib
from pathlib import Path

import pytest

from anchored.eval.experiments.plan import method_settings
from anchored.tools.quickstart.preset import PRESETS, STAGES, Folders, load_preset, run_config


@pytest.mark.parametrize("name", sorted(path.name for path in PRESETS.iterdir()))
def test_presets_load_and_their_stages_follow_each_other(name, tmp_path):
    preset = load_preset(name)
    assert preset.ks == sorted(preset.ks) and preset.bytes.ks == sorted(preset.bytes.ks)
    assert preset.shows_effects is (name == "default")
    assert all(
        setting.rule.is_certified for method in preset.others for setting in method_settings(method)
    )
    first, second = (tomllib.loads(run_config(name, stage, Folders(tmp_path))) for stage in STAGES)
    last = f"{first['job']['dump_folder']}/checkpoint/step-{first['training']['steps']}"
    assert second["checkpoint"]["initial_load_path"] == last
    assert second["lr_scheduler"]["decay_type"] == "linear"
    for run in (first, second):
        assert Path(run["job"]["dump_folder"]).parent == tmp_path
        assert sum(source["weight"] for source in run["data"]["sources"]) == pytest.approx(1)
        assert {source["name"] for source in run["data"]["sources"]} == {"docstrings", "topics"}
