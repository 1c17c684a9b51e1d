"""Paths in configs, next to the file, then where the command runs; folders that are moved."""

import json
import re
import resource
import shutil

import pytest
from command_line import refused, run
from json_lines import write_json_lines

from anchored.decode.pair.folder import ModelFolder, fingerprint
from anchored.eval.experiments.sweep import load_sweep
from anchored.eval.figures import style
from anchored.pretrain.plan.data_config import read_run_config
from anchored.tools.quickstart.small_model import write_risky_model

TEXT = "the keeper of the lamp wrote every wave into a ledger of salt and rain"
PROMPT = {"id": "a", "prompt": "the keeper", "reference": f" of {TEXT}"}
SWEEP = """
safe = "safe"
risky = "risky"
prompts = "prompts.jsonl"
passages = "works.jsonl"
held_out = { a = ["texts.jsonl"] }
num_excerpts = 1
excerpt_tokens = 4
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
KEYS = {"prompts": "prompts.jsonl", "passages": "works.jsonl", "held_out": "texts.jsonl"}

# A random model writes letters that ROUGE cannot read.
pytestmark = pytest.mark.filterwarnings("ignore:.* pairs have letters outside ASCII")


@pytest.fixture(autouse=True)
def one_format(monkeypatch):
    """Of pictures, which take longest here."""
    monkeypatch.setattr(style, "SUFFIXES", (".svg",))


@pytest.fixture
def sweep_in(tmp_path, monkeypatch, pair_folders):
    """Writes a sweep's config in one folder, what it names in another one, and runs in a third."""

    def write(inputs):
        (tmp_path / "run").mkdir()
        monkeypatch.chdir(tmp_path / "run")
        for name, folder in zip(("safe", "risky"), pair_folders, strict=True):
            shutil.copytree(folder, inputs / name)
        write_json_lines(inputs / "prompts.jsonl", [PROMPT])
        write_json_lines(inputs / "works.jsonl", [{"text": TEXT}])
        write_json_lines(inputs / "texts.jsonl", [{"text": f"{TEXT} " * 3}])
        file = tmp_path / "configs" / "some.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(SWEEP)
        return file

    return write


@pytest.mark.parametrize("place", ["configs", "run"])
def test_a_sweep_finds_all_next_to_its_file_or_where_it_runs(sweep_in, tmp_path, place, capsys):
    file = sweep_in(tmp_path / place)
    sweep = load_sweep(file)
    assert (sweep.model("safe") / "config.json").is_file()
    for key, name in KEYS.items():
        assert sweep.path(key, name).resolve() == tmp_path / place / name
    out, _ = run(capsys, "sweep", str(file), "--dry-run")
    assert "x 1 prompts x" in out and "missing" not in out
    for key, name in KEYS.items():
        (tmp_path / place / name).rename(tmp_path / "away")
        places = f"{tmp_path}/configs/{name}, nor {tmp_path}/run/{name}"
        assert f"{key}: there is no file or folder {places}" in refused(capsys, "sweep", str(file))
        (tmp_path / "away").rename(tmp_path / place / name)
    config = tmp_path / "mine" / "some.toml"
    config.parent.mkdir()
    config.write_text('base = "../configs/some.toml"\nprompts = "mine.jsonl"\n')
    write_json_lines(config.parent / "mine.jsonl", [PROMPT, PROMPT | {"id": "b"}])
    assert "x 2 prompts x" in run(capsys, "sweep", str(config), "--dry-run")[0]


def test_the_option_inputs_names_the_folder_of_all_that_is_read(sweep_in, tmp_path, capsys):
    file = ["sweep", str(sweep_in(tmp_path / "configs" / "data")), "--inputs"]
    assert "missing" not in run(capsys, *file, "../configs/data", "--dry-run")[0]
    err = refused(capsys, *file, "data")
    assert f"prompts: there is no file or folder {tmp_path}/run/data/prompts.jsonl\n" in err


def test_a_training_finds_what_it_reads_next_to_its_file_or_where_it_runs(tmp_path, monkeypatch):
    for folder in ("configs/shards", "run/tokenizer"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "run")
    (tmp_path / "configs" / "mixture.toml").write_text(
        'shards_folder = "shards"\nseq_len = 4\ntokens_per_step = 8\nmax_epochs = 1.0\n'
        'stages = [{ name = "one", tokens = 80.0, seed = 0 }]\n'
        'sources = [{ name = "a", weights = { one = 1.0 } }]\n'
    )
    file = tmp_path / "configs" / "train.toml"
    file.write_text(
        '[job]\ndump_folder = "out"\n[model]\ntokenizer = "tokenizer"\n'
        '[data]\nmixture = "mixture.toml"\nstage = "one"\n'
    )
    tables = read_run_config(file)
    paths = [tables["model"]["tokenizer"], tables["data"]["sources"][0]["path"]]
    expected = [tmp_path / "run" / "tokenizer", tmp_path / "configs" / "shards" / "a"]
    assert [(tmp_path / "run" / path).resolve() for path in paths] == expected
    assert tables["job"]["dump_folder"] == "out"  # which is written where it runs
    (tmp_path / "configs" / "mixture.toml").unlink()
    with pytest.raises(FileNotFoundError, match=r"data.mixture: there is no file .*, nor"):
        read_run_config(file)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama3.1-70b+tinycomma-1.8b", "anchored prompts --kind books --input copy-b"),
        ("domains", "anchored prompts --kind creative"),
        ("quickstart-methods", "anchored quickstart"),
    ],
)
def test_a_dry_run_in_a_fresh_folder_plans_and_names_all_that_is_missing(
    capsys, tmp_path, monkeypatch, name, expected
):
    monkeypatch.chdir(tmp_path)
    out, err = run(capsys, "sweep", name, "--dry-run")
    assert expected in out and err == ""
    missing = [line for line in out.splitlines() if re.match(r"  [a-z_]+: \S+$", line)]
    assert missing and f"missing: {len(missing)} input" in out
    assert list(tmp_path.iterdir()) == []
    models = ["--model", "A=./none", "--model", "B=gpt2"]
    out, _ = run(capsys, "compare", "downstream", *models, "--dry-run")
    assert "missing: A: there is no folder ./none" in out


def test_a_sweep_that_is_moved_is_done_and_says_what_differs(capsys, sweep_in, tmp_path):
    file = sweep_in(tmp_path / "configs")
    run(capsys, "sweep", str(file), "--output", str(tmp_path / "configs" / "out"))
    folder = (tmp_path / "configs").rename(tmp_path / "elsewhere")
    before = {path: path.stat().st_mtime_ns for path in folder.glob("out/generations/*")}
    words = ["sweep", str(folder / file.name), "--output", str(folder / "out")]
    run(capsys, *words)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    for old, new, message in (
        ("k = 1.0", "k = 2.0", "methods[1].settings.k was 1.0 and is now 2.0"),
        ('safe = "safe"', 'safe = "risky"', "safe was "),
    ):
        (folder / file.name).write_text(SWEEP.replace(old, new))
        err = refused(capsys, *words)
        assert f"{folder}/out was made with other settings ({message}" in err
    assert str(folder) not in json.dumps(json.loads((folder / "out/steps.json").read_text()))


def test_an_evaluation_that_is_moved_is_done(capsys, tmp_path):
    texts = {"p_s": "salt", "p_r": TEXT, "ours": "the keeper of"}
    rows = [{"id": "a", "setting": n, "text": t, "reference": TEXT} for n, t in texts.items()]
    only = ["--only", "copying"]
    run(capsys, "evaluate", write_json_lines(tmp_path / "one" / "texts.jsonl", rows), *only)
    moved = str((tmp_path / "one").rename(tmp_path / "two") / "texts.jsonl")
    assert "copying: done before" in run(capsys, "evaluate", moved, *only)[1]


def test_the_risky_model_of_a_quickstart_is_moved_with_the_safe_one(tmp_path, pair_folders):
    root = tmp_path / "one" / "models"
    shutil.copytree(pair_folders[0], root / "safe")
    write_risky_model(root / "risky", root / "safe")
    before = fingerprint(ModelFolder.find(root / "risky"))
    (tmp_path / "one").rename(tmp_path / "two")
    moved = ModelFolder.find(tmp_path / "two" / "models" / "risky")
    assert moved.base.resolve() == tmp_path / "two" / "models" / "safe"
    assert fingerprint(moved) == before


@pytest.mark.slow
def test_a_sweep_whose_disk_is_full_names_the_file_and_goes_on_later(capsys, sweep_in, tmp_path):
    words = ["sweep", str(sweep_in(tmp_path / "configs")), "--output"]
    run(capsys, *words, str(tmp_path / "whole"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, before[1]))
    try:
        _, err = run(capsys, *words, str(tmp_path / "cut"), status=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert re.match(rf"anchored sweep: {tmp_path}/cut/\S+: File too large$", err.splitlines()[-1])
    run(capsys, *words, str(tmp_path / "cut"))
    tables = [(tmp_path / name / "table.md").read_text() for name in ("whole", "cut")]
    assert tables[0] == tables[1]
