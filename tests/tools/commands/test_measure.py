"""`anchored measure`: recorded texts in, a table and a results file out."""

import json

import pytest
from command_line import run

KETTLE = "the grey kettle hummed on the stove today"


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    rows = [("p_s", 0, "no"), ("k=1", 0, "the grey kettle sat"), ("p_r", 0, KETTLE)]
    lines = [
        {"setting": name, "seed": seed, "id": "w", "text": text, "reference": KETTLE}
        for name, seed, text in rows
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_copying_prints_both_tables_and_records_all(capsys, texts, tmp_path):
    output = tmp_path / "results" / "copying.json"
    status, out, err = run(capsys, "measure", "copying", texts, "--output", str(output))
    assert (status, err) == (0, "")
    assert "word LCS" in out and "longest copied span" in out
    results = json.loads(output.read_text())
    by_setting = {own["setting"]: own for own in results["settings"]}
    assert by_setting["p_r"]["word_lcs"] == {"mean": 8.0, "std": None, "num_seeds": 1}
    assert by_setting["p_r"]["share_above"] == {"6": 1.0, "20": 0.0, "50": 0.0}
    assert by_setting["p_s"]["ncr"]["mean"] == 1.0
    assert [row["word_lcs"] for row in results["rows"]] == [0, 3, 8]
    assert results["metric_set"] == "paper_spec_v1" and "git_commit" in results["environment"]
    status, out, err = run(capsys, "measure", "copying", texts, "--output", str(output))
    assert (status, out) == (2, "") and "exists: give --overwrite" in err


def test_nonliteral_states_its_comparator_and_takes_fluency_from_the_judge(capsys, tmp_path):
    path, fluency = tmp_path / "stories.jsonl", tmp_path / "fluency.json"
    names = [["Ann"], ["Bo"], ["Cy"], ["Dee"]]
    story = {"setting": "k=1", "text": "Ann, Bo and Cy", "characters": names, "debt": 1.5}
    path.write_text(json.dumps(story))
    judged = {"judge": "fluency", "settings": [{"setting": "k=1", "fluency": {"mean": 4.25}}]}
    fluency.write_text(json.dumps(judged))
    words = ["measure", "nonliteral", str(path), "--fluency", str(fluency)]
    status, out, err = run(capsys, *words)
    assert status == 0 and "characters > 3" in out and "4.25" in out and " 0.000 " in out
    assert err == "1 of 1 texts have a prefix debt\n"
    output = tmp_path / "results.json"
    more = ["--comparator", ">=", "--debt", "any", "--output", str(output)]
    status, out, err = run(capsys, *words, *more)
    assert status == 0 and "characters >= 3" in out and " 1.000 " in out and err == ""
    config = json.loads(output.read_text())["config"]
    assert config == {"num_characters": 3, "comparator": ">=", "debt": "any"}
    judged["settings"][0]["fluency"] = None  # of texts without a word
    fluency.write_text(json.dumps(judged))
    status, out, _ = run(capsys, *words)
    assert status == 0 and out.splitlines()[-1].split()[:1] == ["k=1"] and "-" in out.split()
    status, out, err = run(capsys, *words[:3], "--fluency", str(path))
    assert (status, out) == (1, "")
    assert err.endswith("stories.jsonl is not what anchored judge fluency writes\n")
