"""The command line, run as a user would: results on stdout, one clear line for bad input."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
from command_line import refused, run
from tiny_models import tiny_llama, train_tokenizer

from anchored.tools.cli import COMMANDS, GROUPS


def test_the_command_is_installed_and_lists_its_programs():
    command = [sys.executable, "-m", "anchored.tools.cli", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(name in result.stdout for name in (*COMMANDS, *GROUPS, "--debug"))
    assert len(COMMANDS) <= 24


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_a_stdout_that_takes_nothing_is_one_line(capsys, monkeypatch, word):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert run(capsys, word, status=1)[1] == "anchored: No space left on device\n"


HELP = """
import sys
from anchored.tools.cli import main
for words in {lines!r}:
    try:
        main(words)
    except SystemExit as end:
        print(words, end.code, *set({slow}) & set(sys.modules), file=sys.stderr)
"""
SLOW_IMPORTS = ["torch", "transformers", "scipy", "pandas", "matplotlib", "datasets"]
"""They take seconds together; --help and a mistyped flag must not wait for them."""


def test_help_and_mistyped_words_import_no_slow_library():
    lines = [[*name.split(), word] for name in COMMANDS for word in ("--help", "--hepl")]
    lines.append(["generate", "--safe", "/nowhere", "--risky", "/nowhere", "--prompt", "a"])
    code = HELP.format(lines=lines, slow=SLOW_IMPORTS)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    ended = [line for line in result.stderr.splitlines() if line.startswith("[")]
    statuses = [0, 2] * len(COMMANDS) + [1]
    assert ended == [f"{words} {code}" for words, code in zip(lines, statuses, strict=True)]


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "lm-eval"])
def test_every_program_has_help_with_an_example(capsys, name):
    out, _ = run(capsys, *name.split(), "--help")
    assert out.count(f"anchored {name}") >= 2
    assert "None" not in out  # an option without a default is optional, in words


def test_generate_writes_a_ledger_that_verify_accepts_unless_it_is_changed(
    capsys, pair_words, tmp_path
):
    ledger = tmp_path / "ledgers" / "one.jsonl"
    words = ["generate", *pair_words, "--prompt", "the keeper", "--k", "0.8"]
    words += ["--max-new-tokens", "12", "--ledger", str(ledger)]
    text, err = run(capsys, *words)
    assert text.strip() and "K=9.6" in err and "certified" in err
    assert run(capsys, *words, "--overwrite")[0] == text
    verify = ["verify", *pair_words, "--ledger", str(ledger)]
    assert run(capsys, *verify)[0].startswith("OK: 12 tokens reproduced, ")
    ledger.write_text(ledger.read_text().replace('"step": 2', '"step": 3'))
    assert "line 4 holds step 3, expected 2" in refused(capsys, *verify)


def test_samples_have_a_ledger_each_and_each_can_be_continued(capsys, pair_words, tmp_path):
    short = [*pair_words, "--max-new-tokens", "3", "--debt", "none"]
    several = ["--num-return-sequences", "2", "--ledger", str(tmp_path / "one.jsonl")]
    _, err = run(capsys, "generate", *short, "--prompt", "the keeper", *several)
    assert err.count("(in total 6)") == 2
    earlier = ["--continue-from", str(tmp_path / "one-1.jsonl")]
    assert "(in total 9)" in run(capsys, "generate", *short, *earlier)[1]


def test_score_prints_one_json_object(capsys, pair_words):
    words = ["--prompt", "the keeper", "--continuation", " of the lamp"]
    figures = json.loads(run(capsys, "score", *pair_words, *words)[0])
    assert figures["log_prob"] < 0 and figures["spend"] <= figures["bound"]


def test_saved_ratios_give_the_same_text_and_none_for_another_prompt(capsys, pair_words, tmp_path):
    path = str(tmp_path / "debts" / "keeper.safetensors")
    prompt, words = ["--prompt", "the keeper"], ["--max-new-tokens", "6", "--k", "9"]
    out, _ = run(capsys, "ratios", *pair_words, *prompt, "--output", path)
    assert json.loads(out)["debt"] > 0
    expected = run(capsys, "generate", *pair_words, *prompt, *words)
    words += ["--prompt-ratios", path]
    assert run(capsys, "generate", *pair_words, *prompt, *words) == expected
    lamp = ["generate", *pair_words, "--prompt", "the lamp", *words]
    assert "no ratios are given for the prompt" in refused(capsys, *lamp)


@pytest.mark.skipif(bool(find_spec("flash_attn")), reason="it is installed")
def test_a_library_that_is_not_installed_is_named(capsys, pair_words):
    words = ["--prompt", "a", "--safe-attn-implementation", "flash_attention_2"]
    assert "FlashAttention2" in refused(capsys, "generate", *pair_words, *words)


@pytest.mark.parametrize(
    ("module", "extra"), [("gradio", "demo"), ("lm_eval", "eval"), ("matplotlib", "plots")]
)
def test_the_extra_with_a_missing_library_is_named_once(
    capsys, pair_words, tmp_path, monkeypatch, module, extra
):
    ledger = ["--ledger", str(tmp_path / "one.jsonl")]
    run(capsys, "generate", *pair_words, "--prompt", "a", "--max-new-tokens", "1", *ledger)
    importing = ("anchored.tools.demo", "anchored.eval.harness", "anchored.eval.figures")
    for name in [*sys.modules]:
        if name.startswith((*importing, f"{module}.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    pictured = ["verify", *pair_words, *ledger, "--picture", "new.png"]
    words = {"demo": ["demo", *pair_words], "eval": ["lm-eval", "run"], "plots": pictured}
    assert refused(capsys, *words[extra]).count(f"pip install 'anchored[{extra}]'") == 1


@pytest.fixture
def byte_words(pair_words, tmp_path):
    """A pair with two tokenizers."""
    tiny_llama(1, vocab_size=290).float().save_pretrained(tmp_path / "safe")
    train_tokenizer(vocab_size=290).save_pretrained(tmp_path / "safe")
    return ["--safe", str(tmp_path / "safe"), *pair_words[2:]]


def test_models_with_two_tokenizers_generate_score_and_verify_bytes(capsys, byte_words, tmp_path):
    ledger = tmp_path / "one.jsonl"
    words = ["--prompt", "caf\u00e9", "--max-new-bytes", "9", "--ledger", str(ledger)]
    _, err = run(capsys, "generate", *byte_words, "--byte.prefetch", "0", *words)
    assert "K=9 (k=1 x 9)" in err and "9 bytes" in err
    run(capsys, "verify", *byte_words, "--ledger", str(ledger))
    words = ["--prompt", "caf\u00e9", "--continuation", " \u00e9"]
    assert json.loads(run(capsys, "score", *byte_words, *words)[0])["num_bytes"] == 3
