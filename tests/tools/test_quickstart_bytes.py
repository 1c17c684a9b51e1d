"""The smoke-bytes preset as a user runs it: two tokenizers, the same table and picture."""

import json

import pytest
from training_runs import train

from anchored import Ledger
from anchored.eval.copying import METRIC_SET, METRICS
from anchored.tools.cli import main
from anchored.tools.quickstart import training
from anchored.tools.quickstart.preset import load_preset

pytestmark = pytest.mark.slow


def anchored(capfd, *words: str) -> str:
    """Output of a command that must succeed."""
    with pytest.raises(SystemExit) as end:
        main(list(words))
    assert end.value.code == 0
    return capfd.readouterr().out


def test_a_pair_with_two_tokenizers_is_trained_decoded_measured_and_verified(
    tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr(training, "launch", train)
    folder, preset = tmp_path / "run", load_preset("smoke-bytes")
    words = ["quickstart", "--preset", "smoke-bytes", "--output", str(folder)]
    output = anchored(capfd, *words)
    assert "[yes] every certified ledger satisfies its bound" in output
    assert "not shown by this preset" in output and "[ NO]" not in output
    for name in ("trade_off.png", "budgets.png", "side_by_side.html", "table.md"):
        assert (folder / name).stat().st_size > 0
    results = json.loads((folder / "results.json").read_text())
    assert results["metric_set"] == METRIC_SET
    rows = results["rows"]
    assert all(0 <= row["ncr"]["num_metrics"] <= len(METRICS) for row in rows)
    assert [row["setting"] for row in rows] == ["p_s", *(f"k={k:g}" for k in preset.ks), "p_r"]
    assert all(row["is_within_bounds"] for row in rows)
    path = next((folder / "ledgers" / "k=1").glob("*.jsonl"))
    header = Ledger.load(path).header
    assert (header.level, header.horizon) == ("byte", 4 * preset.max_new_tokens)
    tokenizers = header.level_settings["tokenizers"]
    assert tokenizers["safe"]["sha256"] != tokenizers["risky"]["sha256"]
    models = [f"{folder}/models/{name}" for name in ("safe", "risky")]
    words = ["verify", "--safe", models[0], "--risky", models[1], "--ledger", str(path)]
    assert anchored(capfd, *words).startswith("verified: ")
