"""A smoke preset with two tokenizers as a user runs it: killed on the way, started again, read."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from forked_program import ForkedProgram

from anchored import Ledger
from anchored.eval.copying.metrics import METRIC_SET, METRICS
from anchored.tools.quickstart.preset import load_preset

pytestmark = pytest.mark.slow

PRESET = "smoke-bytes"


def start(folder: Path, name: str) -> ForkedProgram:
    """The quickstart in a session of its own, so that its training process can be killed too."""
    words = ["quickstart", "--preset", PRESET, "--output", str(folder)]
    return ForkedProgram("anchored.tools.cli", words, folder.with_name(name))


def kill_when(process: ForkedProgram, path: Path) -> None:
    """SIGKILL to the whole session as soon as `path` exists."""
    while not path.exists():
        assert process.poll() is None, process.output.read_text()
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory) -> tuple[Path, str]:
    """Folder and output of a run that was killed while it trained the risky model."""
    folder = tmp_path_factory.mktemp("quickstart") / "run"
    kill_when(start(folder, "killed.txt"), folder / "risky" / "metrics.jsonl")
    return folder, start(folder, "resumed.txt").wait_for_success()


def test_finished_steps_were_not_done_again(quickstart):
    _, output = quickstart
    skipped = re.findall(r"^\[\d+\] (.*): done before, skipped$", output, re.MULTILINE)
    assert skipped[:3] == ["gather text", "train tokenizers", "tokenize"]
    assert "pretrain safe-stage2" in skipped and "pretrain risky" not in skipped


def test_all_that_was_promised_is_there(quickstart):
    folder, output = quickstart
    for name in ("trade_off.png", "budgets.png", "report.html", "table.md"):
        assert (folder / name).stat().st_size > 0 and not list(folder.glob("*.partial"))
    assert "[yes] every certified ledger satisfies its bound" in output
    assert "not shown by this preset" in output and "[ NO]" not in output
    assert f"anchored verify --safe {folder}/models/safe" in output


def test_results_hold_every_setting_and_are_strict_json(quickstart):
    folder, _ = quickstart
    preset = load_preset(PRESET)
    results = json.loads(
        (folder / "results.json").read_text(), parse_constant=lambda name: pytest.fail(name)
    )
    assert results["metric_set"] == METRIC_SET
    names = ["p_s", *(f"k={k:g}" for k in preset.ks), "p_r"]
    rows = results["rows"]
    assert [row["setting"] for row in rows] == names
    assert all(0 <= row["ncr"]["num_metrics"] <= len(METRICS) for row in rows)
    assert all(row["is_within_bounds"] for row in rows)
    assert len(results["examples"]) == len(names) * preset.num_works * len(preset.seeds)
    answered = {row["setting"] for row in results["questions"]}
    assert answered == {"p_s", "p_r", results["recommended"]}
    assert len(list((folder / "ledgers").rglob("*.jsonl"))) == len(results["examples"])


def test_a_ledger_of_the_run_is_one_of_bytes_and_verified_from_the_command_line(quickstart):
    folder, _ = quickstart
    path = next((folder / "ledgers" / "k=1").glob("*.jsonl"))
    header = Ledger.load(path).header
    assert (header.level, header.horizon) == ("byte", 4 * load_preset(PRESET).max_new_tokens)
    tokenizers = header.level_settings["tokenizers"]
    assert tokenizers["safe"]["sha256"] != tokenizers["risky"]["sha256"]
    models = [f"{folder}/models/{name}" for name in ("safe", "risky")]
    words = ["verify", "--safe", models[0], "--risky", models[1], "--ledger", str(path)]
    program = ForkedProgram("anchored.tools.cli", words, folder / "verified.txt")
    assert "OK: " in program.wait_for_success()
