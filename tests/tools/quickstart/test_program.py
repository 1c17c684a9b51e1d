"""Presets, and the smallest with a tiny model as a user runs it: killed, started again, read."""

import re
import tomllib
from pathlib import Path

import pytest
from forked_program import ForkedProgram
from tiny_models import tiny_llama

from anchored import Ledger
from anchored.decode.ledger import ledger_parts
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


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_and_leaves_all_that_was_promised(tmp_path, tokenizer):
    model, folder = tmp_path / "model", tmp_path / "run"
    tiny_llama(1, max_position_embeddings=1024).float().save_pretrained(model)
    tokenizer.save_pretrained(model)
    words = ["quickstart", "--preset", "smoke", "--model", str(model), "--output", str(folder)]

    def start(name: str) -> ForkedProgram:
        """In another session, so that its training process can be killed too."""
        return ForkedProgram("anchored.tools.cli", [*words, "--bytes"], tmp_path / name)

    start("killed.txt").end_when((folder / "stage1" / "metrics.jsonl").exists)
    output = start("resumed.txt").wait_for_success()
    skipped = re.findall(r"^\[\d+\] (.*): done before, skipped$", output, re.MULTILINE)
    assert skipped[:2] == ["make the risky model", "write prompts and questions"]
    assert "bytes: tokenize" in skipped and "bytes: pretrain stage1" not in skipped

    for name in ("trade_off.png", "budgets.png", "report.html", "table.md"):
        assert (folder / name).stat().st_size > 0 and not list(folder.glob("*.partial"))
    assert "[yes] every certified ledger satisfies its bound" in output
    assert "not shown by this preset" in output and "[ NO]" not in output
    assert f"--risky {folder}/models/risky --ledger" in output
    for name in ("budgets.png", "report.html", "table.md"):
        assert (folder / "bytes" / name).stat().st_size > 0

    # A ledger of bytes is of the safe model made here.
    path = folder / "bytes" / "ledgers" / "k=1.jsonl"
    header = Ledger.load(path, ledger_parts(path)[0]).header
    assert (header.level, header.horizon) == ("byte", 4 * load_preset("smoke").bytes.max_new_tokens)
    tokenizers = header.level_settings["tokenizers"]
    assert tokenizers["safe"]["sha256"] != tokenizers["risky"]["sha256"]
