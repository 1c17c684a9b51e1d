"""The paper's baselines from the command line: named, given their settings, verified."""

import json

import pytest
from command_line import run
from json_lines import write_json_lines

from anchored import (
    RCAD,
    CPFuse,
    Decoder,
    GlobalSwitch,
    MemFree,
    ModelPair,
)

LINES = [
    {"prompt": "the keeper", "passage": "the keeper of the lamp wrote", "passage_id": 0},
    {"prompt": "every wave", "passage": "every wave into a ledger", "score": 1.5},
]
PROMPTS, PASSAGES = ([line[name] for line in LINES] for name in ("prompt", "passage"))
RULES = {
    "rcad --setting alpha=0.25": RCAD(alpha=0.25),
    "memfree --passages some.jsonl --setting n=2": MemFree(n=2, passages=PASSAGES),
    "cp_fuse --setting grid_size=3 --setting warping=before": CPFuse(grid_size=3, warping="before"),
    "global_switch --K 5": GlobalSwitch(K=5.0),
}


@pytest.mark.parametrize("asked", RULES)
def test_a_rule_with_its_settings_is_that_of_the_library(
    asked, capsys, pair_words, pair_folders, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write_json_lines(tmp_path / "lines.jsonl", LINES)
    write_json_lines(tmp_path / "some.jsonl", [*LINES, {"prompt": "what no passage shares"}])
    words = ["--prompt-file", "lines.jsonl", "--max-new-tokens", "4", "--ledger", "l.jsonl"]
    out, _ = run(capsys, "generate", *pair_words, *words, "--rule", *asked.split())
    rows = sorted(map(json.loads, out.splitlines()), key=lambda row: row["index"])
    passages = {"passages": PASSAGES} if asked.startswith("rcad") else {}
    expected = Decoder(ModelPair.from_pretrained(*pair_folders), RULES[asked]).generate(
        PROMPTS, max_new_tokens=4, **passages
    )
    assert [row["text"] for row in rows] == [result.text for result in expected]
    for row in rows:
        run(capsys, "verify", *pair_words, "--ledger", row["ledger"])
