"""The smoke preset with a tiny model as a user runs it: killed, started again, read."""

import re

import pytest
from forked_program import ForkedProgram
from tiny_models import tiny_llama

from anchored import Ledger
from anchored.decode.ledger import ledger_parts
from anchored.tools.quickstart.preset import load_preset

PRESET = "smoke"


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_and_leaves_all_that_was_promised(tmp_path, tokenizer):
    model, folder = tmp_path / "model", tmp_path / "run"
    tiny_llama(1, max_position_embeddings=1024).float().save_pretrained(model)
    tokenizer.save_pretrained(model)
    words = ["quickstart", "--preset", PRESET, "--model", str(model), "--output", str(folder)]

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
    assert (header.level, header.horizon) == ("byte", 4 * load_preset(PRESET).bytes.max_new_tokens)
    tokenizers = header.level_settings["tokenizers"]
    assert tokenizers["safe"]["sha256"] != tokenizers["risky"]["sha256"]
