"""The evaluations in configs/eval: each can begin, and has the paper's pairs and settings."""

from pathlib import Path

import pytest
from command_line import run
from json_lines import write_json_lines

import anchored
from anchored.configs.config_file import read_config_file
from anchored.eval.analysis.paper_table import PAIRS as PAPERS_PAIRS
from anchored.eval.analysis.paper_table import printed_rows
from anchored.eval.experiments.plan import sweep_settings
from anchored.eval.experiments.sweep import load_sweep

FOLDER = Path(anchored.__file__).parent / "configs" / "eval"
CONFIGS = sorted(FOLDER.glob("*.toml"))
SWEEPS = [file for file in CONFIGS if "methods" in read_config_file(file)]
COMPARISONS = [file for file in CONFIGS if file not in SWEEPS]
PAPER = [file for file in SWEEPS if "quickstart" not in file.name]


@pytest.fixture
def inputs(tmp_path, pair_folders):
    """Files by all names that the configs have, and the quickstart's models."""
    prompt = {"id": "a", "prompt": "Once upon a time", "reference": "x y z"}
    for file in SWEEPS:
        tables = read_config_file(file)
        prompts = tables["prompts"]
        names = [*(prompts if isinstance(prompts, list) else [prompts]), tables["passages"]]
        names += [name for held_out_names in tables["held_out"].values() for name in held_out_names]
        names += [f"{tables['task_folder']}/{task}.yaml" for task in tables.get("tasks", [])]
        for name in filter(None, names):
            rows = [prompt | {"id": f"{Path(name).stem}-{number}"} for number in range(2)]
            write_json_lines(tmp_path / name, rows)
    (tmp_path / "models").mkdir()
    for name, folder in zip(
        ("safe", "risky", "miniature"), (*pair_folders, pair_folders[0]), strict=True
    ):
        (tmp_path / "models" / name).symlink_to(folder)
    return tmp_path


def test_every_sweep_and_comparison_can_begin(inputs, capsys):
    for file in SWEEPS:
        out, _ = run(capsys, "sweep", str(file), "--inputs", str(inputs), "--dry-run")
        assert f" x {6 if 'domains' in file.stem else 2} prompts x " in out
        assert ("risky_device_map = auto" in out) == (file in PAPER)
    for file in COMPARISONS:
        assert "3 models x" in run(capsys, "compare", str(file), "--dry-run")[0]


def test_all_pairs_are_there_and_the_domains_are_the_papers():
    pairs = {(t["safe"], t["risky"]) for t in map(read_config_file, PAPER)}
    books = [file.stem for file in PAPER if "+" in file.stem and "bios" not in file.stem]
    assert len(pairs) == len(books) == 7
    assert all((FOLDER / f"{name}-bios.toml").is_file() for name in books)
    for file in PAPER:
        tables = read_config_file(file)
        penalty = 1.05 if file.stem.endswith("-bios") else 1.1
        assert (tables["temperature"], tables["repetition_penalty"]) == (0.7, penalty)
    for name in PAPERS_PAIRS:  # those of the paper's full table
        names = [setting.name for setting in sweep_settings(load_sweep(FOLDER / f"{name}.toml"))]
        assert {row["setting"] for row in printed_rows(name)} == {*names}
    for name, level in (("domains", "token"), ("domains-bytes", "byte")):
        tables = read_config_file(FOLDER / f"{name}.toml")
        assert len(tables["prompts"]) == 3 and tables["max_prompts"] == 180
        assert (tables["max_new_tokens"], tables["level"]) == (50, level)  # of bytes four each
