"""The command line, run as a user would: results on stdout, one clear line for bad input."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run
from tiny_models import tiny_llama, train_tokenizer

import anchored.tools
from anchored.tools.cli import COMMANDS, GROUPS, Command
from anchored.tools.interrupts import defer_during_imports

PRINTING = ["--help", "sweep --list"]


@pytest.mark.parametrize("line", PRINTING)
def test_a_stdout_that_takes_nothing_is_one_line(capsys, monkeypatch, line):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        _, err = run(capsys, *line.split(), status=1)
    assert err.count("\n") == 1 and err.endswith(": stdout: No space left on device\n")


@pytest.mark.parametrize("line", PRINTING)
def test_a_pipe_that_nobody_reads_is_no_error_in_words(capsys, monkeypatch, line):
    """As after `| head`, with the status of cat there."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert run(capsys, *line.split(), status=141)[1] == ""


def test_a_stdout_without_some_characters_gets_them_escaped(capsys, monkeypatch, pair_folders):
    line = ["generate", "--prompt", "salt", "--max-new-tokens", "60", "--temperature", "2"]
    line += ["--safe", str(pair_folders[0]), "--risky", str(pair_folders[1])]
    text, _ = run(capsys, *line)
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii"))
    run(capsys, *line)
    escaped = "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in text)
    assert raw.getvalue().decode() == escaped != text


def test_the_command_is_installed_and_lists_its_programs():
    command = [sys.executable, "-m", "anchored", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(name in result.stdout for name in (*COMMANDS, *GROUPS, "--debug"))
    assert len(COMMANDS) <= 28  # a screen holds them all


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
    code = HELP.format(lines=lines, slow=SLOW_IMPORTS)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    ended = [line for line in result.stderr.splitlines() if line.startswith("[")]
    statuses = [0, 2] * len(COMMANDS)
    assert ended == [f"{words} {code}" for words, code in zip(lines, statuses, strict=True)]


def test_ledgers_are_verified_and_texts_go_on_from_them(capsys, pair_words, tmp_path):
    words = ["generate", *pair_words, "--prompt", "the keeper", "--k", "0.8"]
    words += ["--max-new-tokens", "12", "--num-return-sequences", "2"]
    words += ["--ledger", str(tmp_path / "new" / "one.jsonl")]
    text, err = run(capsys, *words)
    assert text.strip() and "K=9.6" in err and "certified" in err
    assert run(capsys, *words, "--overwrite")[0] == text
    ledgers = [str(path) for path in sorted((tmp_path / "new").iterdir())]
    verify = ["verify", *pair_words, "--ledger"]
    assert run(capsys, *verify, ledgers[0])[0].startswith("OK: 12 tokens reproduced, ")
    out, _ = run(capsys, *verify, *ledgers)
    assert [line.split(": ")[:2] for line in out.splitlines()] == [[name, "OK"] for name in ledgers]
    earlier = ["--continue-from", ledgers[1], "--max-new-tokens", "3"]
    assert "(in total " in run(capsys, "generate", *pair_words, *earlier)[1]
    Path(ledgers[0]).write_text("{}\n")
    out, _ = run(capsys, *verify, *ledgers, status=1)  # the others are verified too
    assert f"{ledgers[0]}: FAILED" in out and f"{ledgers[1]}: OK" in out


def test_models_with_two_tokenizers_write_as_many_bytes_as_asked_and_verify(
    capsys, pair_words, tmp_path
):
    tiny_llama(1, vocab_size=290).float().save_pretrained(tmp_path / "safe")
    train_tokenizer(vocab_size=290).save_pretrained(tmp_path / "safe")
    words = ["--safe", str(tmp_path / "safe"), *pair_words[2:]]
    words += ["--ledger", str(tmp_path / "one.jsonl")]
    _, err = run(capsys, "generate", *words, "--prompt", "caf\u00e9", "--max-new-bytes", "9")
    assert "K=13.5 (k=1.5 x 9)" in err and "9 bytes" in err
    run(capsys, "verify", *words)


INTERRUPTING = {
    "an import that catches it": (
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    sum(range(10**6))\n"
        "except BaseException:\n    print('swallowed')\n"
    ),
    "a destructor": (
        "class Part:\n    def __del__(self):\n        os.kill(os.getpid(), signal.SIGINT)\n"
        "        sum(range(10**6))\n"
        "def use():\n    Part()\n"
    ),
    "work": "def use():\n    os.kill(os.getpid(), signal.SIGINT)\n",
}


@pytest.mark.parametrize("module", INTERRUPTING.values(), ids=INTERRUPTING)
def test_ctrl_c_ends_in_one_line_wherever_it_comes(capsys, monkeypatch, tmp_path, module):
    code = f"import os, signal, time\ndef use():\n    pass\n{module}\n"
    code += "def run(words: list[str]) -> int:\n    use()\n    time.sleep(60)\n    return 0\n"
    (tmp_path / "interrupting.py").write_text(code)
    monkeypatch.setattr(anchored.tools, "__path__", [*anchored.tools.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "anchored.tools.interrupting", raising=False)
    monkeypatch.setitem(COMMANDS, "interrupt", Command("interrupting.run", ""))
    # It is ignored by what a shell started in the background, the tests themselves perhaps.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        defer_during_imports()
        assert run(capsys, "interrupt", status=130) == ("", "anchored interrupt: interrupted\n")
    finally:
        signal.signal(signal.SIGINT, before)
