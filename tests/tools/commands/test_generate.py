"""anchored generate: prompts from words, files and stdin; texts, JSON and ledgers; nothing lost."""

import io
import json
import shutil
import sys
from itertools import islice
from pathlib import Path
from unittest.mock import Mock

import pytest
from command_line import refused, run
from json_lines import write_json_lines

from anchored import (
    RCAD,
    Anchored,
    AnchoredError,
    CPFuse,
    Decoder,
    Generation,
    GlobalSwitch,
    Ledger,
    MemFree,
    ModelPair,
)
from anchored.tools.cli import main
from anchored.tools.commands.generate import GenerateConfig
from anchored.tools.commands.words import parse

PROMPTS = [
    {"prompt": "the keeper", "id": "first", "seed": 3},
    {"prompt": "the lamp", "k": 0.25},
    {"prompt": "every wave", "id": 7},
]
TEMPLATE = "{{ bos_token }}<|turn|>{% for turn in messages %}{{ turn.content }}{% endfor %}<|turn|>"


@pytest.fixture
def words(pair_words) -> list[str]:
    return ["generate", *pair_words, "--max-new-tokens", "5"]


@pytest.fixture
def expected(pair_folders) -> list[Generation]:
    """The library's answers to PROMPTS."""
    decoder = Decoder(ModelPair.from_pretrained(*pair_folders), Anchored(k=1.5))
    texts = [prompt["prompt"] for prompt in PROMPTS]
    return decoder.generate(texts, max_new_tokens=5, seed=[3, 0, 0], k=[1.5, 0.25, 1.5])


@pytest.fixture
def prompt_file(tmp_path) -> str:
    return write_json_lines(tmp_path / "prompts.jsonl", PROMPTS)


def by_index(out: str) -> list[dict]:
    return sorted(map(json.loads, out.splitlines()), key=lambda row: row["index"])


def test_lines_of_json_give_lines_of_json_with_ledgers_to_verify(
    capsys, words, prompt_file, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "stdin", io.StringIO(Path(prompt_file).read_text()))
    more = ["--prompt-file", "-", "--ledger", str(tmp_path / "new" / "l.jsonl")]
    out, err = run(capsys, *words, *more)
    rows = by_index(out)
    assert err == ""
    assert [row["text"] for row in rows] == [result.text for result in expected]
    options = [(row["id"], row["seed"], row["k"]) for row in rows]
    assert options == [("first", 3, 1.5), (None, 0, 0.25), (7, 0, 1.5)]
    for row, result in zip(rows, expected, strict=True):
        ledger = Ledger.load(row["ledger"])
        assert ledger.lines() == result.ledger.lines()
        assert (row["K"], row["bound"]) == (ledger.header.K, ledger.header.bound)
        assert (row["spent"], row["debt"]) == (ledger.spent, ledger.header.debt)
        assert row["certified"] and row["finish_reason"] == "length" and row["error"] == ""


def test_an_interrupted_text_leaves_the_ledger_of_what_its_reader_saw(
    capsys, words, expected, monkeypatch, tmp_path
):
    class Interrupted(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            if len(self.getvalue()) >= 3:
                raise KeyboardInterrupt
            return super().write(text)

    ledger = tmp_path / "one.jsonl"
    options = [*words, "--prompt", "the keeper", "--seed", "3", "--ledger", str(ledger)]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal := Interrupted())
        with pytest.raises(SystemExit, match="130"):
            main(options)
    recorded = Ledger.load(ledger)
    assert recorded.finish_reason == "aborted" and recorded.steps
    assert recorded.token_ids == expected[0].token_ids[: len(recorded.steps)]
    assert 3 <= len(terminal.getvalue()) < len(expected[0].text)
    assert expected[0].text.startswith(terminal.getvalue())


def test_an_instruct_model_is_decoded_with_a_base_model(
    capsys, words, pair_folders, pair, tmp_path
):
    instruct = shutil.copytree(pair_folders[1], tmp_path / "instruct")
    (instruct / "chat_template.jinja").write_text(TEMPLATE)
    words[4] = str(instruct)
    chat = [{"role": "user", "content": "the keeper"}]
    options = ["--messages", write_json_lines(tmp_path / "c.jsonl", [{"messages": chat, "id": 7}])]
    (row,) = by_index(run(capsys, *words, *options, "--ledger", str(tmp_path / "l.jsonl"))[0])
    assert (row["prompt"], row["messages"], row["id"]) == (None, chat, 7)
    header = Ledger.load(row["ledger"]).header
    assert pair.tokenizer.decode(header.prompt_token_ids) == "<|begin|>the keeper\n\n"
    assert pair.tokenizer.decode(header.chat_prompts["risky"]) == (
        "<|begin|><|turn|>the keeper<|turn|>"
    )
    assert run(capsys, *words, "--prompt", "the keeper", "--chat")[0] == row["text"] + "\n"


def test_an_interrupted_call_keeps_what_has_ended(
    capsys, words, prompt_file, tmp_path, monkeypatch
):
    generate_each = Decoder.generate_each

    def interrupted(*arguments, **options):
        yield from islice(generate_each(*arguments, **options), 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(Decoder, "generate_each", interrupted)
    more = ["--prompt-file", prompt_file, "--ledger", str(tmp_path / "l.jsonl")]
    out, err = run(capsys, *words, *more, status=130)
    assert err == "anchored generate: interrupted\n"
    assert [len(Ledger.load(row["ledger"]).steps) for row in by_index(out)] == [5, 5]


def test_texts_that_fail_do_so_alone_as_lines_of_json(capsys, words, expected, tmp_path):
    prompts = [{"prompt": "the keeper", "seed": 3}, {"prompt": "a \ud800 b", "id": "torn"}]
    options = ["--prompt-file", write_json_lines(tmp_path / "prompts.jsonl", prompts)]
    out, err = run(capsys, *words, *options, "--ledger", str(tmp_path / "l.jsonl"), status=1)
    good, torn = by_index(out)
    assert err.startswith("anchored generate: 1 of 2 texts failed: torn: ")
    assert good["text"] == expected[0].text and not good["error"]
    assert Ledger.load(good["ledger"]).certified
    assert "lone surrogate" in torn["error"] and torn["id"] == "torn"
    assert torn["ledger"] is None and not torn["certified"]


LINES = [
    {"prompt": "the keeper", "passage": "the keeper of the lamp wrote", "passage_id": 0},
    {"prompt": "every wave", "passage": "every wave into a ledger", "score": 1.5},
]
RULES = {
    "--rule memfree --passages some.jsonl --setting n=2": MemFree(
        n=2, passages=[line["passage"] for line in LINES]
    ),
    "--rule cp_fuse --setting grid_size=3 --setting warping=before": CPFuse(
        grid_size=3, warping="before"
    ),
    "--rule global_switch --K 5": GlobalSwitch(K=5.0),
}


def test_a_rule_with_its_settings_is_that_of_the_library(
    capsys, words, pair_folders, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write_json_lines(tmp_path / "some.jsonl", [*LINES, {"prompt": "what no passage shares"}])
    for line, rule in RULES.items():
        config = parse(GenerateConfig, "generate", [*words[1:], "--prompt", "a", *line.split()])
        assert config.rule.make() == rule
    options = ["--prompt-file", write_json_lines(tmp_path / "lines.jsonl", LINES)]
    out, _ = run(capsys, *words, *options, "--rule", "rcad", "--setting", "alpha=0.25")
    passages = [line["passage"] for line in LINES]
    results = Decoder(ModelPair.from_pretrained(*pair_folders), RCAD(alpha=0.25)).generate(
        [line["prompt"] for line in LINES], max_new_tokens=5, passages=passages
    )
    assert [row["text"] for row in by_index(out)] == [result.text for result in results]


def test_a_bug_is_a_traceback_and_so_is_an_error_with_debug(capsys, words, monkeypatch):
    with pytest.raises(FileNotFoundError):
        main([*words, "--prompt-file", "nowhere", "--debug"])
    generate = Mock(side_effect=[RuntimeError("shapes do not match"), AnchoredError("one\ntwo")])
    monkeypatch.setattr(Decoder, "generate_each", generate)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        main([*words, "--prompt", "a"])
    assert refused(capsys, *words, "--prompt", "a") == "anchored generate: one two\n"


def test_json_has_infinite_nats_as_strings_and_what_holds_for_all_samples(capsys, words):
    out, _ = run(capsys, *words, "--prompt", "a", "--rule", "risky_only", "--json")
    row = json.loads(out, parse_constant=pytest.fail)
    assert row["K"] == "inf" and not row["certified"]
    out, err = run(capsys, *words, "--prompt", "a", "--prompt", "b", "--K", "2")
    assert all(f"==> {number} of 2 <==" in out for number in (1, 2))
    assert err.count("K=2 (k=0.4 x 5)") == 2
    more = ["--prompt", "the keeper", "--num-return-sequences", "3", "--json", "--debt", "none"]
    out, _ = run(capsys, *words, *more)
    assert [(row["bound"], row["total_bound"]) for row in by_index(out)] == [(7.5, 22.5)] * 3
