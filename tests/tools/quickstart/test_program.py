"""The smoke preset with a tiny model as a user runs it: killed, started again, read."""

import json
import re
from pathlib import Path

import pytest
from forked_program import ForkedProgram
from tiny_models import tiny_llama

from anchored import Ledger
from anchored.decode.ledger import ledger_parts
from anchored.tools.quickstart.preset import load_preset

pytestmark = pytest.mark.slow

PRESET = "smoke"


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory, tokenizer) -> tuple[Path, str]:
    """Folder and output of a run that was killed while it pretrained the safe model."""
    model = tmp_path_factory.mktemp("model")
    tiny_llama(1, max_position_embeddings=1024).float().save_pretrained(model)
    tokenizer.save_pretrained(model)
    folder = tmp_path_factory.mktemp("quickstart") / "run"
    words = ["quickstart", "--preset", PRESET, "--model", str(model), "--output", str(folder)]

    def start(name: str) -> ForkedProgram:
        """In another session, so that its training process can be killed too."""
        return ForkedProgram("anchored.tools.cli", [*words, "--bytes"], folder.with_name(name))

    start("killed.txt").end_when((folder / "stage1" / "metrics.jsonl").exists)
    return folder, start("resumed.txt").wait_for_success()


def test_all_that_was_promised_is_there_and_finished_steps_were_not_done_again(quickstart):
    folder, output = quickstart
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


def test_results_hold_every_setting_and_are_strict_json(quickstart):
    folder, _ = quickstart
    preset = load_preset(PRESET)
    results = json.loads((folder / "results.json").read_text(), parse_constant=pytest.fail)
    names = ["p_s", *(f"k={k:g}" for k in preset.ks), "Pathwise, bank 20, k=1", "p_r"]
    assert [row["setting"] for row in results["rows"]] == names
    assert all(row["is_within_bounds"] for row in results["rows"])
    assert len(results["examples"]) == len(names) * preset.num_works * len(preset.seeds)
    assert all(0 <= row["accuracy/quickstart_facts"] <= 1 for row in results["rows"])
    parts = [ledger_parts(path) for path in (folder / "ledgers").iterdir()]
    assert sum(map(len, parts)) == len(results["examples"])


def test_a_ledger_of_bytes_is_of_the_safe_model_made_here(quickstart):
    path = quickstart[0] / "bytes" / "ledgers" / "k=1.jsonl"
    header = Ledger.load(path, ledger_parts(path)[0]).header
    assert (header.level, header.horizon) == ("byte", 4 * load_preset(PRESET).bytes.max_new_tokens)
    tokenizers = header.level_settings["tokenizers"]
    assert tokenizers["safe"]["sha256"] != tokenizers["risky"]["sha256"]
