"""The smoke-bytes preset as a user runs it: two tokenizers, the same table and picture."""

import json
import subprocess
import sys

import pytest

from anchored import Ledger
from anchored.tools.quickstart.preset import load_preset

pytestmark = pytest.mark.slow


def anchored(*words: str) -> str:
    """Output of a command that must succeed."""
    command = [sys.executable, "-m", "anchored.tools.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_pair_with_two_tokenizers_is_trained_decoded_measured_and_verified(tmp_path):
    output = anchored("quickstart", "--preset", "smoke-bytes", "--output", str(tmp_path / "run"))
    assert "every certified ledger satisfies its bound" in output
    folder, preset = tmp_path / "run", load_preset("smoke-bytes")
    for name in ("trade_off.png", "budgets.png", "side_by_side.html", "table.md"):
        assert (folder / name).stat().st_size > 0
    rows = json.loads((folder / "results.json").read_text())["rows"]
    assert [row["setting"] for row in rows] == ["p_s", *(f"k={k:g}" for k in preset.ks), "p_r"]
    assert all(row["is_within_bounds"] for row in rows)
    path = next((folder / "ledgers" / "k=1").glob("*.jsonl"))
    header = Ledger.load(path).header
    assert (header.level, header.horizon) == ("byte", 4 * preset.max_new_tokens)
    tokenizers = header.level_settings["tokenizers"]
    assert tokenizers["safe"]["sha256"] != tokenizers["risky"]["sha256"]
    models = [f"{folder}/models/{name}" for name in ("safe", "risky")]
    verdict = anchored("verify", "--safe", models[0], "--risky", models[1], "--ledger", str(path))
    assert verdict.startswith("verified: ")
