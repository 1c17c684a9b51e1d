"""Paths in configs: next to the file, then where the command runs, and named where in neither."""

import re
import shutil

import pytest
from command_line import refused, run
from json_lines import write_json_lines

from anchored.eval.experiments.sweep import load_sweep
from anchored.pretrain.plan.data_config import load_mixture, read_run_config

METHOD = '[[methods]]\nrule = "anchored"\nlabel = "ours"\nsettings = { k = 1.0 }\n'
PROMPT = {"id": "a", "prompt": "the keeper", "reference": " of the lamp"}
KEYS = {
    "prompts": "prompts.jsonl",
    "passages": "works.jsonl",
    "held_out": "texts.jsonl",
    "tasks": "tasks/one.yaml",
}


@pytest.fixture
def sweep_in(tmp_path, monkeypatch, pair_folders):
    """Writes a sweep's config in one folder, what it names in another one, and runs in a third."""

    def write(inputs):
        (tmp_path / "run").mkdir()
        monkeypatch.chdir(tmp_path / "run")
        for name, folder in zip(("safe", "risky"), pair_folders, strict=True):
            shutil.copytree(folder, inputs / name)
        write_json_lines(inputs / "prompts.jsonl", [PROMPT])
        write_json_lines(inputs / "works.jsonl", [{"text": "the keeper of the lamp"}])
        write_json_lines(inputs / "texts.jsonl", [{"text": "the keeper of the lamp " * 5}])
        write_json_lines(inputs / "tasks" / "one.yaml", [])
        file = tmp_path / "configs" / "own.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(
            'safe = "safe"\nrisky = "risky"\nprompts = "prompts.jsonl"\npassages = "works.jsonl"\n'
            'held_out = { a = ["texts.jsonl"] }\ntask_folder = "tasks"\ntasks = ["one"]\n'
            f'device = "cpu"\n{METHOD}'
        )
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


@pytest.mark.parametrize(("key", "name"), [*KEYS.items()][::3])
def test_what_is_in_neither_place_is_named_with_its_key_and_both_places(
    sweep_in, tmp_path, capsys, key, name
):
    file = sweep_in(tmp_path / "configs")
    (tmp_path / "configs" / name).unlink()
    places = f"{tmp_path}/configs/{name}, nor {tmp_path}/run/{name}"
    assert f"{key}: there is no file or folder {places}" in refused(capsys, "sweep", str(file))
    assert not (tmp_path / "run" / "runs").exists()


@pytest.mark.parametrize("place", ["configs", "run"])
def test_a_training_finds_what_it_reads_next_to_its_file_or_where_it_runs(
    tmp_path, monkeypatch, place
):
    for folder in ("configs", "run"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "run")
    names = ("tokenizer", "shards", "other/step-1", "heldout")
    for name in names:
        (tmp_path / place / name).mkdir(parents=True)
    (tmp_path / place / "mixture.toml").write_text(
        'shards_folder = "shards"\nseq_len = 4\ntokens_per_step = 8\nmax_epochs = 1.0\n'
        'stages = [{ name = "one", tokens = 80.0, seed = 0 }]\n'
        'sources = [{ name = "a", weights = { one = 1.0 } }]\n'
    )
    file = tmp_path / "configs" / "train.toml"
    file.write_text(
        '[job]\ndump_folder = "out"\n[model]\ntokenizer = "tokenizer"\n'
        '[checkpoint]\ninitial_load_path = "other/step-1"\n'
        '[data]\nmixture = "mixture.toml"\nstage = "one"\n'
        '[heldout]\nsources = [{ name = "h", path = "heldout" }]\n'
    )
    tables = read_run_config(file)
    paths = [tables["model"]["tokenizer"], tables["checkpoint"]["initial_load_path"]]
    paths += [tables["data"]["sources"][0]["path"], tables["heldout"]["sources"][0]["path"]]
    expected = [tmp_path / place / name for name in ("tokenizer", "other/step-1", "shards/a")]
    assert [str((tmp_path / "run" / name).resolve()) for name in paths] == [
        *map(str, expected),
        str(tmp_path / place / "heldout"),
    ]
    assert tables["job"]["dump_folder"] == "out"  # which is written where it runs
    assert load_mixture(tmp_path / place / "mixture.toml").stages[0].name == "one"
    (tmp_path / place / "mixture.toml").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"data.mixture: there is no file or folder .*, nor"
    ):
        read_run_config(file)


FRESH = {
    "llama3.1-70b+tinycomma-1.8b": ("758 prompts", "anchored prompts --kind books --input copy-b"),
    "domains": ("540 prompts", "anchored prompts --kind creative"),
    "quickstart-methods": ("16 prompts", "anchored quickstart"),
}


@pytest.mark.parametrize(("name", "expected"), FRESH.items())
def test_a_dry_run_in_a_fresh_folder_plans_and_names_all_that_is_missing(
    capsys, tmp_path, monkeypatch, name, expected
):
    monkeypatch.chdir(tmp_path)
    out, err = run(capsys, "sweep", name, "--dry-run")
    assert expected[0] in out and expected[1] in out and "GB of texts and ledgers" in out
    assert err == ""
    places = [
        line.split(": ")[1] for line in out.splitlines() if re.match(r"  [a-z_]+: \S+$", line)
    ]
    assert places and f"missing: {len(places)} input" in out
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_names_every_model_that_a_comparison_lacks(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models = ["--model", "A=./none", "--model", "B=gpt2", "--model", "C=/nowhere"]
    out, _ = run(capsys, "compare", "downstream", *models, "--dry-run")
    assert "missing: A: there is no folder ./none" in out and "missing: C: there is no" in out
    assert "A: there is no folder ./none" in refused(capsys, "compare", "downstream", *models)
