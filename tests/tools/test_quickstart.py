"""The smoke preset as a user runs it: killed on the way, started again, then read."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from forked_program import ForkedProgram

from anchored.eval.copying import METRIC_SET
from anchored.tools.quickstart.preset import load_preset

pytestmark = pytest.mark.slow


def start(folder: Path, name: str) -> ForkedProgram:
    """The quickstart in a session of its own, so that its training process can be killed too."""
    words = ["quickstart", "--preset", "smoke", "--output", str(folder)]
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
    for name in ("trade_off.png", "budgets.png", "losses.png", "side_by_side.html", "table.md"):
        assert (folder / name).stat().st_size > 0 and not list(folder.glob("*.partial"))
    assert "every certified ledger satisfies its bound" in output
    assert f"anchored verify --safe {folder}/models/safe" in output


def test_results_hold_every_setting_and_are_strict_json(quickstart):
    folder, _ = quickstart
    preset = load_preset("smoke")
    results = json.loads(
        (folder / "results.json").read_text(), parse_constant=lambda name: pytest.fail(name)
    )
    assert results["metric_set"] == METRIC_SET
    names = ["p_s", *(f"k={k:g}" for k in preset.ks), "p_r"]
    assert [row["setting"] for row in results["rows"]] == names
    assert len(results["examples"]) == len(names) * preset.num_works * len(preset.seeds)
    assert all(row["is_within_bounds"] for row in results["rows"])
    assert {row["setting"] for row in results["questions"]} == {
        "p_s",
        "p_r",
        results["recommended"],
    }
    num_ledgers = len(list((folder / "ledgers").rglob("*.jsonl")))
    assert num_ledgers == len(results["examples"])


def test_a_ledger_of_the_run_is_verified_from_the_command_line(quickstart):
    folder, _ = quickstart
    ledger = next((folder / "ledgers" / "k=1").glob("*.jsonl"))
    safe, risky = folder / "models" / "safe", folder / "models" / "risky"
    words = ["verify", "--safe", safe, "--risky", risky, "--ledger", ledger]
    program = ForkedProgram("anchored.tools.cli", [*map(str, words)], folder / "verified.txt")
    program.wait_for_success()
