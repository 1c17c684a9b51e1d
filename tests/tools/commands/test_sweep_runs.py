"""Sweeps as a user runs them: by one process or two, killed and started again; what they leave."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import refused, run
from forked_program import start_ranks
from json_lines import read_json_lines, write_json_lines

from anchored import Ledger, LedgerError
from anchored.decode.ledger import ledger_parts
from anchored.durable_files import locked
from anchored.eval.figures import style
from anchored.tools.cli import main

TEXT = "the keeper of the lamp wrote every wave into a ledger of salt and rain "
METHODS = """
[[methods]]
rule = "memfree"
label = "MemFree"
settings = { n = 2 }

[[methods]]
rule = "rcad"
label = "RCAD"
settings = { alpha = 0.5 }

[[methods]]
rule = "anchored"
label = "Anchored"
settings = { k = [0.5, 4.0] }
figures = ["methods", "debt_window"]

[[methods]]
rule = "anchored"
label = "NoDebt"
settings = { k = 0.5, debt = "none" }
figures = ["debt", "debt_window"]
"""
PAIR = ("safe", "risky")
SETTINGS = ["p_s", "p_r", "MemFree", "RCAD", "Anchored, k=0.5", "Anchored, k=4", "NoDebt"]


@pytest.fixture(scope="module", autouse=True)
def one_format() -> Iterator[None]:
    """One format of pictures, which take longest here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "SUFFIXES", (".svg",))
        yield


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, pair_folders) -> Path:
    """A folder of models and texts, and the sweep's file."""
    folder = tmp_path_factory.mktemp("inputs")
    for name, model in zip(PAIR, pair_folders, strict=True):
        (folder / name).symlink_to(model)
    prompts = [
        {"id": f"work-{i}", "prompt": start, "reference": " " + TEXT}
        for i, start in enumerate(("the keeper of", "every wave into"))
    ]
    write_json_lines(folder / "prompts.jsonl", prompts)
    write_json_lines(folder / "works.jsonl", [{"text": TEXT}, {"text": "import math"}])
    texts = [{"text": TEXT * n} for n in (2, 3, 2, 3)]
    write_json_lines(folder / "extra.jsonl", texts)
    (folder / "sweep.toml").write_text(f"""
safe = "safe"
risky = "risky"
prompts = "prompts.jsonl"
passages = "works.jsonl"
max_new_tokens = 6
repetition_penalty = 1.0
seeds = [0, 1]
num_excerpts = 2
excerpt_tokens = 6
batch_size = 2
device = "cpu"
held_out = {{ extra = ["extra.jsonl"] }}
{METHODS}""")
    return folder


@pytest.fixture(scope="module")
def command(inputs) -> list[str]:
    """The words of the sweep but for its output."""
    return ["sweep", str(inputs / "sweep.toml"), "--output"]


@pytest.fixture(scope="module")
def swept(command, tmp_path_factory) -> Path:
    """The folder of a sweep that one process has done."""
    output = tmp_path_factory.mktemp("swept") / "run"
    with pytest.raises(SystemExit) as end:
        main([*command, str(output)])
    assert not end.value.code
    return output


def recorded(folder: Path) -> dict[str, str]:
    """Files that one process leaves and several do: texts, figures, tables."""
    # Ledgers of MemFree name a file in the folder, so that they are as long as its path.
    texts = [*folder.glob("generations/*"), *folder.glob("ledgers/*")]
    kept = [path for path in texts if path.stem != "MemFree"]
    kept += folder.glob("measurements/**/*.json")
    kept += [*folder.glob("*.md"), *folder.glob("*.tex")]
    kept += [folder / "results.json", *folder.glob("*.svg")]
    return {str(path.relative_to(folder)): path.read_text() for path in kept}


def test_every_setting_prompt_and_seed_is_recorded_with_its_ledger(swept):
    figures = json.loads((swept / "results.json").read_text(), parse_constant=pytest.fail)
    assert figures["schema"] == "anchored-sweep/1" and "inputs" not in figures["settings"]
    assert [row["setting"] for row in figures["rows"]] == SETTINGS
    assert len(figures["examples"]) == 7 * 2 * 2
    rows = read_json_lines(swept / "generations" / "Anchored-k=4.jsonl")
    assert [(row["id"], row["seed"]) for row in rows] == [
        (f"work-{i}", seed) for seed in (0, 1) for i in (0, 1)
    ]
    header = Ledger.load(swept / rows[0]["ledger"], rows[0]["ledger_part"]).header
    assert (header.k, header.horizon, header.sampling["temperature"]) == (4.0, 6, 0.7)
    assert all(row["is_within_bound"] for row in rows)
    assert figures["rows"][2]["bits_per_byte/extra"] is None  # MemFree blocks the held-out text
    (blocked,) = (swept / "blocked.jsonl").read_text().splitlines()
    assert json.loads(blocked) == {"text": TEXT}  # what BM25 found for both prompts
    ledgers = (swept / "ledgers" / "MemFree.jsonl").read_text()
    assert ledgers.count(f'"corpus": "{swept}/blocked.jsonl"') == 4 and TEXT not in ledgers


def test_the_ledgers_of_a_setting_are_verified_and_drawn_together(
    capsys, swept, pair_folders, tmp_path
):
    safe, risky = map(str, pair_folders)
    words = ["verify", "--safe", safe, "--risky", risky, "--device", "cpu", "--ledger"]
    ledgers = swept / "ledgers" / "Anchored-k=4.jsonl"
    with pytest.raises(LedgerError, match="holds several ledgers: `ledger_parts` says where"):
        Ledger.load(ledgers)
    longer, picture = tmp_path / "longer.jsonl", tmp_path / "means.svg"
    options = ["--divergences", str(longer), "--picture", str(picture)]
    out, _ = run(capsys, *words, str(ledgers), *options)
    assert out.count("OK: ") == 4 == len(ledger_parts(longer))
    assert "Means of 4 generations" in picture.read_text()
    ledgers = tmp_path / "changed.jsonl"
    ledgers.write_text(longer.read_text().replace('"seed": ', '"seed": 1', 1))
    run(capsys, *words, str(ledgers), status=1)
    out, _ = run(capsys, *words, str(longer), "--limit", "2")
    assert out.count("OK: ") == 2


def test_a_sweep_that_is_moved_does_nothing_again_and_says_what_differs(
    capsys, inputs, swept, tmp_path
):
    for path in inputs.iterdir():
        (tmp_path / path.name).symlink_to(path)
    output = shutil.copytree(swept, tmp_path / "moved")
    times = {path: path.stat().st_mtime_ns for path in output.glob("*s/**/*.json*")}
    words = ["sweep", str(tmp_path / "sweep.toml"), "--output", str(output)]
    out, _ = run(capsys, *words, "--dry-run")
    total = "7 settings x 2 prompts x 2 seeds = 28 generations of at most 6 tokens: 168 tokens"
    assert total in out and "missing" not in out
    assert [line.split("  ")[0] for line in out.splitlines()[2:9]] == SETTINGS
    out, err = run(capsys, *words)
    assert "Best utility" in out and err.count("done before, skipped") == 6
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert recorded(output) == recorded(swept)
    assert str(tmp_path) not in (output / "steps.json").read_text()
    text = (inputs / "sweep.toml").read_text()
    (tmp_path / "other.toml").write_text(text.replace("{ n = 2 }", "{ n = 3 }"))
    err = refused(capsys, "sweep", str(tmp_path / "other.toml"), *words[2:])
    difference = "methods[0].settings.n was 2 and is now 3"
    assert f"{output} was made with other settings ({difference}" in err
    (tmp_path / "works.jsonl").unlink()
    places = f"{tmp_path}/works.jsonl, nor {Path.cwd()}/works.jsonl"
    assert f"passages: there is no file or folder {places}" in refused(capsys, *words)


def test_a_dry_run_in_a_fresh_folder_names_all_that_is_missing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out, err = run(capsys, "sweep", "domains", "--dry-run")
    assert "anchored prompts --kind creative" in out and err == ""
    missing = [line for line in out.splitlines() if re.match(r"  [a-z_]+: \S+$", line)]
    assert missing and f"missing: {len(missing)} input" in out
    models = ["--model", "A=./none", "--model", "B=gpt2"]
    out, _ = run(capsys, "compare", "downstream", *models, "--dry-run")
    assert "missing: A: there is no folder ./none" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_two_processes_leave_what_one_leaves(inputs, swept, tmp_path):
    """Each of them lays the risky model out by accelerate."""
    file = tmp_path / "spread.toml"
    spread = '[placement]\ngpus = 2\noptions = { risky_device_map = "auto" }\n'
    file.write_text(f'base = "{inputs / "sweep.toml"}"\n{spread}')
    words = ["sweep", str(file), "--output", str(tmp_path / "run")]
    ranks = start_ranks("anchored.tools.cli", words, tmp_path / "output", 2)
    first, second = (rank.wait_for_success() for rank in ranks)
    assert "Best utility" in first and "Best utility" not in second
    assert recorded(tmp_path / "run") == recorded(swept)


def test_a_second_first_process_is_refused(command, swept, capsys):
    with locked(swept / "locks" / "first", waits=False) as is_ours:
        assert is_ours
        assert f"another sweep is at work in {swept}" in refused(capsys, *command, str(swept))
