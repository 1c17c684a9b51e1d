"""Folders of results that are copied or moved, and what is said where other settings meet them."""

import json
import re
import resource
import shutil

import pytest
from command_line import refused, run
from json_lines import write_json_lines

from anchored.decode.pair.folder import ModelFolder, fingerprint
from anchored.tools.quickstart.small_model import write_risky_model

TEXT = "the keeper of the lamp wrote every wave into a ledger of salt and rain"
SWEEP = """
safe = "safe"
risky = "risky"
prompts = "prompts.jsonl"
passages = "works.jsonl"
max_new_tokens = 2
seeds = [0]
device = "cpu"
[[methods]]
rule = "memfree"
label = "MemFree"
settings = { n = 2 }
[[methods]]
rule = "anchored"
label = "ours"
settings = { k = 1.0 }
"""

# A random model writes letters that ROUGE cannot read.
pytestmark = pytest.mark.filterwarnings("ignore:.* pairs have letters outside ASCII")


@pytest.fixture
def inputs(tmp_path, pair_folders, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, folder in zip(("safe", "risky"), pair_folders, strict=True):
        shutil.copytree(folder, tmp_path / "in" / name)
    prompt = {"id": "a", "prompt": "the keeper", "reference": f" of {TEXT}"}
    write_json_lines(tmp_path / "in" / "prompts.jsonl", [prompt])
    write_json_lines(tmp_path / "in" / "works.jsonl", [{"text": TEXT}])
    (tmp_path / "in" / "sweep.toml").write_text(SWEEP)
    return tmp_path / "in"


def moved(inputs):
    """The folder of inputs and results under another name, the old one gone."""
    other = inputs.with_name("elsewhere")
    inputs.rename(other)
    return other


def test_a_sweep_that_is_moved_is_done_and_says_what_differs(capsys, inputs):
    run(capsys, "sweep", str(inputs / "sweep.toml"), "--output", str(inputs / "run"))
    inputs = moved(inputs)
    before = {file: file.stat().st_mtime_ns for file in inputs.glob("run/generations/*")}
    words = ["sweep", str(inputs / "sweep.toml"), "--output", str(inputs / "run")]
    run(capsys, *words)
    assert before == {file: file.stat().st_mtime_ns for file in inputs.glob("run/generations/*")}
    changes = [
        ("k = 1.0", "k = 2.0", "methods[1].settings.k was 1.0 and is now 2.0"),
        ("seeds = [0]", "seeds = [1]", "seeds was [0] and is now [1]"),
        ('safe = "safe"', 'safe = "risky"', "safe was "),
    ]
    for old, new, message in changes:
        (inputs / "sweep.toml").write_text(SWEEP.replace(old, new))
        err = refused(capsys, *words)
        assert f"{inputs}/run was made with other settings ({message}" in err
    (inputs / "sweep.toml").write_text(SWEEP)
    (inputs / "prompts.jsonl").write_text((inputs / "prompts.jsonl").read_text() + "\n")
    assert "other settings (prompts was [" in refused(capsys, *words)
    assert str(inputs) not in json.dumps(json.loads((inputs / "run" / "steps.json").read_text()))


def test_an_evaluation_that_is_moved_is_done_and_says_what_differs(capsys, inputs):
    rows = [
        {"id": "a", "setting": name, "text": text, "reference": TEXT}
        for name, text in (("p_s", "salt"), ("p_r", TEXT), ("ours", "the keeper of"))
    ]
    texts = write_json_lines(inputs / "texts.jsonl", rows)
    run(capsys, "evaluate", texts, "--only", "copying")
    texts = str(moved(inputs) / "texts.jsonl")
    words = ["evaluate", texts, "--only", "copying"]
    assert "copying: done before" in run(capsys, *words)[1]
    err = run(capsys, *words, "--beside", "ours")[1]
    assert 'copying: again, as options.beside was null and is now "ours"' in err


def test_the_risky_model_of_a_quickstart_is_moved_with_the_safe_one(tmp_path, pair_folders):
    root = tmp_path / "one" / "models"
    shutil.copytree(pair_folders[0], root / "safe")
    write_risky_model(root / "risky", root / "safe")
    before = fingerprint(ModelFolder.find(root / "risky"))
    (tmp_path / "one").rename(tmp_path / "two")
    moved_folder = ModelFolder.find(tmp_path / "two" / "models" / "risky")
    assert moved_folder.base.resolve() == tmp_path / "two" / "models" / "safe"
    assert fingerprint(moved_folder) == before


@pytest.mark.parametrize(
    "limit", [1500, *(pytest.param(limit, marks=pytest.mark.slow) for limit in (200, 4000))]
)
def test_a_sweep_whose_disk_is_full_names_the_file_and_goes_on_later(capsys, inputs, limit):
    words = ["sweep", str(inputs / "sweep.toml"), "--output"]
    run(capsys, *words, str(inputs / "whole"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        _, err = run(capsys, *words, str(inputs / "run"), status=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert re.match(rf"anchored sweep: {inputs}/run/\S+: File too large$", err.splitlines()[-1])
    run(capsys, *words, str(inputs / "run"))
    tables = [(inputs / name / "table.md").read_text() for name in ("whole", "run")]
    assert tables[0] == tables[1]
