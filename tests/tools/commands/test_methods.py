"""The paper's baselines from the command line: named, given their settings, verified."""

import json

import pytest
from command_line import run

from anchored import RCAD, Decoder, MemFree, ModelPair

PROMPTS = [
    {"prompt": "the keeper", "passage": "the keeper of the lamp wrote", "passage_id": 0},
    {"prompt": "every wave", "passage": "every wave into a ledger", "score": 1.5},
]


@pytest.fixture
def words(pair_words, tmp_path) -> list[str]:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, PROMPTS)))
    return ["generate", *pair_words, "--max-new-tokens", "4", "--prompt-file", str(file)]


def generated(capsys, words, pair_words, tmp_path):
    status, out, err = run(capsys, *words, "--ledger", str(tmp_path / "l.jsonl"))
    assert status == 0, err
    rows = sorted(map(json.loads, out.splitlines()), key=lambda row: row["index"])
    for row in rows:
        verdict, _, err = run(capsys, "verify", *pair_words, "--ledger", row["ledger"])
        assert verdict == 0, err
    return [row["text"] for row in rows]


def test_rcad_takes_the_passage_of_each_line(capsys, words, pair_words, pair_folders, tmp_path):
    asked = ["--rule", "rcad", "--setting", "alpha=0.25"]
    found = generated(capsys, [*words, *asked], pair_words, tmp_path)
    expected = Decoder(ModelPair.from_pretrained(*pair_folders), RCAD(alpha=0.25)).generate(
        [line["prompt"] for line in PROMPTS],
        passages=[line["passage"] for line in PROMPTS],
        max_new_tokens=4,
    )
    assert found == [result.text for result in expected]


def test_memfree_blocks_the_passages_of_a_file(capsys, words, pair_words, pair_folders, tmp_path):
    file = words[words.index("--prompt-file") + 1]
    asked = ["--rule", "memfree", "--passages", file, "--setting", "n=2"]
    found = generated(capsys, [*words, *asked], pair_words, tmp_path)
    rule = MemFree(n=2, passages=[line["passage"] for line in PROMPTS])
    expected = Decoder(ModelPair.from_pretrained(*pair_folders), rule).generate(
        [line["prompt"] for line in PROMPTS], max_new_tokens=4
    )
    assert found == [result.text for result in expected]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "asked",
    [
        ["system", "--setting", "prompt=Write nothing of others."],
        ["cp_fuse", "--setting", "grid_size=3", "--setting", "warping=before"],
        ["no_opt", "--k", "2"],
        ["cold_start"],
        ["global_switch", "--K", "5"],
    ],
    ids=lambda asked: asked[0],
)
def test_the_others_need_no_passage(capsys, words, pair_words, tmp_path, asked):
    generated(capsys, [*words, "--rule", *asked], pair_words, tmp_path)
