"""anchored certify on a tiny pair: the table, its files, and what is refused."""

import json

import pytest
from command_line import run
from json_lines import write_json_lines


@pytest.fixture
def command(pair_words, tmp_path):
    """The words of the command but for its options."""
    lines = [
        {"id": "waves", "prompt": "the keeper of", "reference": " every wave into the ledger"},
        {"id": "bell", "prompt": "salt and rain", "reference": " the harbour bell rang"},
        {"id": "short", "prompt": "import", "reference": "a"},
    ]
    file = write_json_lines(tmp_path / "prompts.jsonl", lines)
    return ["certify", *pair_words, "--prompt-file", str(file), "--output", str(tmp_path / "c")]


def test_the_table_has_a_row_for_each_rule_and_names_what_nothing_certifies(
    capsys, command, tmp_path
):
    words = ["--bank", "1", "4", "--target", "1e-3", "--window", "4", "--length", "24"]
    out, _ = run(capsys, *command, *words)
    title, *lines = out.splitlines()
    assert title == (
        "Largest k, nats per token, with which an answer of 24 tokens recites none of 3 texts with "
        "a chance above 0.001:"
    )
    assert lines[1].split("  ")[0] == "recited" and lines[1].endswith("no bank  bank 1  bank 4")
    kinds, names = ["any 4 tokens of a text", "a whole text"], "Anchored Anchored_inf Pathwise"
    rows = [line.split()[-4] for line in lines[3:9]]
    assert rows == 2 * names.split()
    assert [line.startswith(kind) for kind in kinds for line in lines[3:9]].count(True) == 6
    assert "No k > 0 certifies a whole text of short, at e^-" in out
    results = json.loads((tmp_path / "c" / "certificates.json").read_text())
    assert results["schema"] == "anchored-certificates/1" and results["target"] == 1e-3
    assert [row["id"] for row in results["events"]["texts"]] == ["waves", "bell", "short"]
    assert results["largest_k"][5]["rule"] == "Pathwise"
    table = (tmp_path / "c" / "certificates.md").read_text()
    assert "| a whole text | Pathwise |" in table and "of short" in table


def test_prompts_without_references_are_refused(capsys, pair_words, tmp_path):
    file = write_json_lines(
        tmp_path / "prompts.jsonl", [{"id": "a", "prompt": "salt", "reference": ""}]
    )
    _, err = run(capsys, "certify", *pair_words, "--prompt-file", str(file), status=1)
    assert "no prompt has a reference, so there is nothing to certify" in err
