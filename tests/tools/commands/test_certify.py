"""anchored certify on a tiny pair: the table, its files, and what is refused."""

import json

import pytest
from command_line import run
from json_lines import write_json_lines

from anchored.eval.figures import style


@pytest.fixture
def command(pair_words, tmp_path, monkeypatch):
    """The words of the command but for what is asked."""
    monkeypatch.setattr(style, "SUFFIXES", (".png",))
    lines = [
        {"id": "waves", "prompt": "the keeper of", "reference": " every wave into the ledger"},
        {"id": "bell", "prompt": "salt and rain", "reference": " the harbour bell rang"},
        {"id": "short", "prompt": "import", "reference": "a"},
    ]
    file = write_json_lines(tmp_path / "prompts.jsonl", lines)
    return ["certify", *pair_words, "--prompt-file", str(file), "--output", str(tmp_path / "c")]


def test_the_table_has_a_row_for_each_divergence_and_names_what_nothing_certifies(
    capsys, command, tmp_path
):
    words = ["--order", "1.5", "4", "--target", "1e-3", "--window", "4", "--length", "24"]
    out, _ = run(capsys, *command, *words)
    whole, passages = out.split("at which an answer of 24 tokens recites ")[1:]
    assert whole.startswith("a whole text with a chance of at most 0.001:")
    assert passages.startswith("any 4 tokens of a text with a chance of at most 0.001:")
    for part in (whole, passages):
        rows = [line.split("  ")[0] for line in part.splitlines()[4:8]]
        assert rows == ["KL", "order 1.5", "order 4", "max"]
    assert "No k > 0 certifies a whole text, of short: the safe model alone gives it" in out
    results = json.loads((tmp_path / "c" / "certificates.json").read_text())
    assert results["schema"] == "anchored-certificates/1" and results["target"] == 1e-3
    assert [row["id"] for row in results["events"]["texts"]] == ["waves", "bell", "short"]
    assert (tmp_path / "c" / "certificates.png").stat().st_size > 0
    table = (tmp_path / "c" / "certificates.md").read_text()
    assert "| order 1.5 |" in table and "of short" in table


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "1"], "--target must be in (0, 1), got 1.0"),
        (["--quantile", "0"], "--quantile must be in (0, 1), got 0.0"),
        (["--order", "1"], "--order must be in [1.1, 64], got 1.0"),
        (["--window", "0"], "--window must be >= 1, got 0"),
        (["--window", "30", "--length", "20"], "--window must be <= --length 20, got 30"),
        (["--temperature", "0"], "--temperature must be > 0: greedy decoding has no bound"),
    ],
)
def test_a_bad_value_is_one_line_before_a_model_is_loaded(capsys, command, words, message):
    _, err = run(capsys, *command, *words, status=2)
    assert err.splitlines()[-1].endswith(message)


def test_prompts_without_references_are_refused(capsys, pair_words, tmp_path):
    file = write_json_lines(
        tmp_path / "prompts.jsonl", [{"id": "a", "prompt": "salt", "reference": ""}]
    )
    _, err = run(capsys, "certify", *pair_words, "--prompt-file", str(file), status=1)
    assert "no prompt has a reference, so there is nothing to certify" in err
