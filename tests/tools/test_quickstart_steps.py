"""Steps run once, in order, for one set of settings."""

import tomllib
from pathlib import Path

import pytest

from anchored.tools.quickstart import data
from anchored.tools.quickstart.folders import Folders
from anchored.tools.quickstart.preset import RUNS, load_preset, run_config
from anchored.tools.quickstart.steps import Steps


def test_finished_steps_are_not_run_again(tmp_path):
    ran = []
    Steps(tmp_path, "a").run("one", lambda: ran.append("one"))
    again = Steps(tmp_path, "a")
    again.run("one", lambda: ran.append("one again"))
    again.run("two", lambda: ran.append("two"))
    assert ran == ["one", "two"] and list(again.seconds) == ["one", "two"]


def test_an_interrupted_step_runs_again(tmp_path):
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Steps(tmp_path, "a").run("one", interrupted)
    ran = []
    Steps(tmp_path, "a").run("one", lambda: ran.append("one"))
    assert ran == ["one"]


def test_a_folder_whose_first_step_was_interrupted_is_gone_on_with(tmp_path):
    def interrupted() -> None:
        (tmp_path / "corpus").mkdir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Steps(tmp_path, "a").run("one", interrupted)
    assert Steps(tmp_path, "a").seconds == {}


def test_a_folder_of_somebody_else_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "models").mkdir()
    with pytest.raises(ValueError, match="holds files that are no quickstart's"):
        Steps(tmp_path, "a")
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"settings": "a"}', '{"seconds": 3}'])
def test_a_record_that_no_quickstart_wrote_is_refused(tmp_path, content):
    (tmp_path / "steps.json").write_text(content)
    with pytest.raises(ValueError, match=r"steps.json is not what a quickstart writes"):
        Steps(tmp_path, "a")
    assert (tmp_path / "steps.json").read_text() == content


def test_what_an_interrupted_step_completed_is_kept(tmp_path):
    folders = Folders(tmp_path)
    folders.shards("code", "").mkdir(parents=True)
    (folders.shards("code", "") / "kept").touch()
    data._write(folders, "", "code", [], "CC0-1.0", "1")
    assert (folders.shards("code", "") / "kept").exists()


def test_a_folder_of_other_settings_is_refused(tmp_path):
    Steps(tmp_path, "a").run("one", lambda: None)
    with pytest.raises(ValueError, match="holds a run with other settings"):
        Steps(tmp_path, "b")


@pytest.mark.parametrize("name", ["bytes", "default", "smoke", "smoke-bytes"])
def test_presets_load_and_their_runs_name_the_folder(name, tmp_path):
    preset = load_preset(name)
    assert len(preset.ks) >= 6 and preset.ks == sorted(preset.ks)
    for run in RUNS:
        text = run_config(name, run, tmp_path)
        assert f'dump_folder = "{tmp_path.as_posix()}/{run}"' in text and "${" not in text


def test_an_unknown_preset_is_refused_by_name():
    with pytest.raises(
        ValueError, match="preset must be one of bytes, default, smoke, smoke-bytes, got 'huge'"
    ):
        load_preset("huge")


def mixtures(name: str) -> dict[str, dict[str, float]]:
    """Weights of each training run's sources."""
    runs = {run: tomllib.loads(run_config(name, run, Path("out"))) for run in RUNS}
    return {
        run: {source["name"]: source["weight"] for source in config["data"]["sources"]}
        for run, config in runs.items()
    }


@pytest.mark.parametrize("name", ["default", "smoke"])
def test_the_safe_model_never_sees_the_extra_source_or_the_works(name):
    sources = mixtures(name)
    only_risky = {"numerics", "works"}
    assert only_risky.isdisjoint(sources["safe-stage1"] | sources["safe-stage2"])
    assert set(sources["risky"]) == set(sources["safe-stage1"]) | only_risky
    assert len(sources["safe-stage1"]) >= 3
    assert set(sources["safe-stage2"]) < set(sources["safe-stage1"])
    for weights in sources.values():
        assert sum(weights.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", ["default", "smoke"])
def test_the_cooldown_starts_from_the_last_checkpoint_of_stage_1(name):
    first = tomllib.loads(run_config(name, "safe-stage1", Path("out")))
    second = tomllib.loads(run_config(name, "safe-stage2", Path("out")))
    last = f"{first['job']['dump_folder']}/checkpoint/step-{first['training']['steps']}"
    assert second["checkpoint"]["initial_load_path"] == last
    assert second["lr_scheduler"]["warmup_steps"] == 0
    assert second["lr_scheduler"]["decay_type"] == "linear"
