"""One schema of --prompt-file: what one command writes, every other one takes."""

import io
import json

import pytest
from command_line import refused, run
from json_lines import read_json_lines, write_json_lines

from anchored.tools.commands.generate import GenerateConfig
from anchored.tools.commands.words import parse

KEYS = {
    "id": "one",
    "prompt": "the keeper",
    "reference": " of the lamp",
    "title": "The keeper",
    "domain": "books",
    "characters": [["Ann"], ["Ben", "Benny"]],
    "group": "rare",
    "answer": "a lamp",
    "seed": 3,
    "k": 0.5,
}


def written_by_prompts(capsys, folder):
    record = {"id": "one", "input": "the keeper", "reference": "of the lamp", "title": "A"}
    record |= {"characters": [["Ann"]], "group": 3, "answer": "a lamp"}
    source = write_json_lines(folder / "books.jsonl", [record])
    output = str(folder / "prompts.jsonl")
    run(capsys, "prompts", "--kind", "books", "--input", source, "--output", output)
    return output


def written_by_retrieve(capsys, folder):
    prompts = write_json_lines(folder / "plain.jsonl", [KEYS])
    corpus = write_json_lines(folder / "corpus.jsonl", [{"id": 7, "text": "the keeper of it"}])
    output = str(folder / "prompts.jsonl")
    run(capsys, "retrieve", "--corpus", corpus, "--prompt-file", prompts, "--output", output)
    (row,) = read_json_lines(folder / "prompts.jsonl")
    assert row == KEYS | {"passage": "the keeper of it", "passage_id": 7, "score": row["score"]}
    return output


@pytest.mark.parametrize("write", [written_by_prompts, written_by_retrieve])
def test_what_one_command_writes_every_other_takes(capsys, pair_words, tmp_path, write):
    file = ["--prompt-file", write(capsys, tmp_path)]
    corpus = write_json_lines(tmp_path / "c.jsonl", [{"text": "the keeper"}])
    (asked,) = read_json_lines(tmp_path / "prompts.jsonl")
    kept = {key: asked[key] for key in asked.keys() - {"passage", "passage_id", "score"}}
    for words in (
        ["generate", *pair_words, *file, "--max-new-tokens", "2"],
        ["score", *pair_words, *file],
        ["retrieve", "--corpus", corpus, *file],
    ):
        (row,) = map(json.loads, run(capsys, *words)[0].splitlines())
        assert kept.items() <= row.items()
    # It counts the prompts that it has read before it loads a model.
    words = ["calibrate", *pair_words, *file, "--output", str(tmp_path / "calibration")]
    assert "1 prompts show an NCR of at most" in refused(capsys, *words)


def test_a_line_with_another_key_is_refused(capsys, pair_words, tmp_path):
    file = write_json_lines(tmp_path / "p.jsonl", [KEYS | {"temperature": 1}])
    message = refused(capsys, "generate", *pair_words, "--prompt-file", file)
    assert "line 1 has an unknown key 'temperature'; known: id, prompt, ref" in message


def test_a_text_comes_from_a_word_a_file_or_stdin(
    capsys, pair_words, tmp_path, monkeypatch, caplog
):
    (tmp_path / "text.txt").write_text("@the caf\u00e9\n\nof it\r\n")
    outputs = []
    for word in ("@@the caf\u00e9\n\nof it", f"@{tmp_path}/text.txt", "-"):
        monkeypatch.setattr("sys.stdin", io.StringIO("@the caf\u00e9\n\nof it\n"))
        words = [*pair_words, "--prompt", word, "--continuation", "a"]
        outputs.append(run(capsys, "score", *words)[0])
    assert outputs[0] == outputs[1] == outputs[2]
    name = str(tmp_path / "text.txt")
    words = [*pair_words, "--prompt", name, "--max-new-tokens", "1", "--stop", r"a\t", "."]
    assert parse(GenerateConfig, "generate", words).stop == ("a\t", ".")
    run(capsys, "generate", *words)
    assert f"the prompt {name} is the name of a file: @{name} reads its text" in caplog.text


def test_verify_takes_several_ledgers_and_goes_on_after_one_that_fails(
    capsys, pair_words, tmp_path
):
    words = [*pair_words, "--prompt", "the keeper", "--max-new-tokens", "2"]
    several = ["--num-return-sequences", "3", "--ledger", str(tmp_path / "l.jsonl")]
    run(capsys, "generate", *words, *several)
    files = [str(tmp_path / f"l-{number}.jsonl") for number in range(3)]
    verify = ["verify", *pair_words, "--ledger", *files]
    lines = run(capsys, *verify)[0].splitlines()
    assert [line.split(": ")[:2] for line in lines] == [[file, "OK"] for file in files]
    (tmp_path / "l-0.jsonl").write_text("{}\n")
    changed = (tmp_path / "l-1.jsonl").read_text().replace('"seed": 0', '"seed": 1')
    (tmp_path / "l-1.jsonl").write_text(changed)
    lines = run(capsys, *verify, status=1)[0].splitlines()
    assert [line.split(": ")[1] for line in lines if not line.startswith(" ")] == [
        "FAILED",
        "FAILED",
        "OK",
    ]
