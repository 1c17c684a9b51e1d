"""The command line, run as a user would: results on stdout, one clear line for bad input."""

import io
import json
import os
import resource
import subprocess
import sys
import warnings
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import refused, run
from tiny_models import tiny_llama, train_tokenizer

import anchored
from anchored.configs.config_file import find_config
from anchored.tools import cli
from anchored.tools.cli import COMMANDS, GROUPS
from anchored.tools.commands import words


def test_the_command_is_installed_and_lists_its_programs():
    command = [sys.executable, "-m", "anchored.tools.cli", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(name in result.stdout for name in (*COMMANDS, *GROUPS, "--debug"))
    assert len(COMMANDS) <= 28  # a screen holds them all


PRINTING = ["--help", "--version", "generate --help", "sweep --list", "plan --list"]


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


@pytest.mark.parametrize("columns", [20, 50, 80, 300])
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "lm-eval"])
def test_help_is_as_wide_as_the_terminal_and_no_wider_than_a_page(
    capsys, monkeypatch, name, columns
):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = run(capsys, *name.split(), "--help")[0].splitlines()
    assert max(map(len, lines)) <= min(columns, 100)
    words = " ".join(lines).split()
    assert len(words) < 1.6 * len(" ".join(words)) / 6  # whole words, not letters below each other


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "lm-eval"])
def test_every_program_has_help_with_an_example(capsys, name):
    out, _ = run(capsys, *name.split(), "--help")
    assert " ".join(out.split()).count(f"anchored {name}") >= 2
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


def test_each_reason_of_a_refused_ledger_is_printed_once(capsys, pair_words, tmp_path, monkeypatch):
    ledger = ["--ledger", str(tmp_path / "one.jsonl")]
    run(capsys, "generate", *pair_words, "--prompt", "a", "--max-new-tokens", "1", *ledger)
    verify, failures = anchored.verify, ["the first", "the second"]
    monkeypatch.setattr(anchored, "verify", lambda *of: replace(verify(*of), failures=failures))
    out, _ = run(capsys, "verify", *pair_words, *ledger, status=1)
    assert out == "REFUSED: the first (and 1 more)\n  the second\n"


def test_samples_have_a_ledger_each_and_each_can_be_continued(capsys, pair_words, tmp_path):
    short = [*pair_words, "--max-new-tokens", "3", "--debt", "none"]
    several = ["--num-return-sequences", "2", "--ledger", str(tmp_path / "one.jsonl")]
    _, err = run(capsys, "generate", *short, "--prompt", "the keeper", *several)
    assert err.count("(in total 9)") == 2
    earlier = ["--continue-from", str(tmp_path / "one-1.jsonl")]
    assert "(in total 13.5)" in run(capsys, "generate", *short, *earlier)[1]


def test_score_prints_one_json_object(capsys, pair_words):
    words = ["--prompt", "the keeper", "--continuation", " of the lamp"]
    figures = json.loads(run(capsys, "score", *pair_words, *words)[0])
    assert figures["log_prob"] < 0 and figures["spend"] <= figures["bound"]


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
    assert "K=13.5 (k=1.5 x 9)" in err and "9 bytes" in err
    run(capsys, "verify", *byte_words, "--ledger", str(ledger))
    words = ["--prompt", "caf\u00e9", "--continuation", " \u00e9"]
    assert json.loads(run(capsys, "score", *byte_words, *words)[0])["num_bytes"] == 3


def test_warnings_show_no_line_of_source(capsys, monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # of this process
    run(capsys, "paper", status=2)
    assert warnings.formatwarning("it is cold", UserWarning, "file.py", 7) == "it is cold\n"


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("train", "pretrain"),
        ("eval", "evaluate"),
        ("run", "generate"),
        ("gen", "generate"),
        ("version", "--version"),
        ("-V", "--version"),
        ("help", "--help"),
        ("server", "serve"),
        ("lm_eval", "lm-eval"),
        ("generat", "generate"),
    ],
)
def test_a_word_that_is_no_command_says_which_one_is_meant(capsys, word, meant):
    assert f"did you mean anchored {meant}? " in run(capsys, word, status=2)[1]


def test_all_that_may_be_meant_exists():
    flags = {"--help", "--version"}
    assert set(cli.MEANT.values()) - flags <= set(COMMANDS)
    assert not set(cli.MEANT) & set(COMMANDS)
    kinds = filter(None, map(cli.options_class, COMMANDS.values()))
    options = {flag for kind in kinds for flag in words.option_values(kind)}
    assert set(words.MEANT.values()) <= options


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("generate --max_tokens 3", "--max-new-tokens"),
        ("generate --max-tokens=3", "--max-new-tokens"),
        ("generate --n 3", "--num-return-sequences"),
        ("generate --do-sample", "--temperature"),
        ("generate --num_samples 3", "--num-return-sequences"),
        ("generate --input x", "--prompt-file"),
        ("generate --temprature 1", "--temperature"),
        ("evaluate x --judge_modl m", "--judge-model"),
        ("sweep x --out y", "--output"),
        ("generate --trust-remote-code", None),
    ],
)
def test_an_option_that_does_not_exist_is_one_line_with_what_is_meant(capsys, line, meant):
    _, err = run(capsys, *line.split(), status=2)
    option = next(word.partition("=")[0] for word in line.split() if word.startswith("--"))
    assert err.count("\n") == 1 and f"there is no option {option};" in err
    assert meant is None or f"did you mean {meant}" in err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--k=1,2", "must be a number, got '1,2'"),
        ("--max-new-tokens=1.5", "must be a whole number, got '1.5'"),
        ("--temperature=x", "must be a number, got 'x'"),
        ("--speculate=x", "must be auto, off or a whole number, got 'x'"),
        ("--device=nope", "anchored generate: a device must be cpu, cuda"),
        ("--rule=nope", "anchored generate: "),
        ("--ledger=", "anchored generate: --ledger must not be empty"),
        ("--stop=", "anchored generate: --stop must not be empty"),
        ("--byte.prefetch=x", "--byte.prefetch must be a whole number, got 'x'"),
        ("--top-p=2", "anchored generate: --top-p must be in (0, 1], got 2.0"),
        ("--byte.prefetch=-1", "anchored generate: prefetch must be >= 0, got -1"),
    ],
)
def test_no_message_names_a_class(capsys, pair_words, option, message):
    _, err = run(capsys, "generate", *pair_words, "--prompt", "a", option, status=2)
    assert message in err and err.count("\n") == 1
    assert not any(word in err for word in ("Config", "class '", "typing.", "no type matching"))


@pytest.mark.parametrize("name", ["sweep", "compare", "plan", "pretrain", "bench pretrain"])
def test_the_package_s_configs_are_listed_by_names_that_find_them(
    capsys, name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    lines = run(capsys, *name.split(), "--list")[0].splitlines()
    listed = {line.split()[0]: line for line in lines}
    assert all(find_config(Path(config)).is_file() for config in listed)
    assert all(len(line.split()) > 2 for line in lines)  # with what it is
    expected = {"sweep": "quickstart-methods", "compare": "downstream"}
    assert expected.get(name, "tinycomma-1.8b-stage2") in listed
    assert not {"token", "byte", "prompts"} & listed.keys()
    assert "--list" in run(capsys, *name.split(), "--help")[0]


def test_the_package_is_a_module_that_runs(tmp_path):
    command = [sys.executable, "-m", "anchored", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert result.stdout.strip() == anchored.__version__


# A shell starts what runs in its background with SIGINT ignored, and programs inherit that.
INTERRUPTED = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from anchored.tools import cli
import anchored.tools
anchored.tools.__path__.append({folder!r})
cli.COMMANDS["interrupt"] = cli.Command("interrupting.run", "")
cli.main(["interrupt"])
"""
KILL = "import os, signal, time\n"
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
def test_ctrl_c_ends_in_one_line_wherever_it_comes(tmp_path, module):
    code = f"{KILL}def use():\n    pass\n{module}\n"
    code += "def run(words: list[str]) -> int:\n    use()\n    time.sleep(60)\n    return 0\n"
    (tmp_path / "interrupting.py").write_text(code)
    command = [sys.executable, "-c", INTERRUPTED.format(folder=str(tmp_path))]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr == "anchored interrupt: interrupted\n"


def test_a_process_that_ignores_ctrl_c_still_does():
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); import anchored.tools.cli;"
    code += "print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "True\n"


@pytest.fixture
def full_disk():
    """Files that end at so many bytes: as on a full disk, the system's error names no file."""

    def limit(num_bytes: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("command", "written", "limit"),
    [
        ("generate", ["--max-new-tokens", "3", "--output", "out.jsonl"], 1),
        ("generate", ["--max-new-tokens", "3", "--ledger", "out.jsonl"], 1000),
    ],
)
def test_a_disk_that_is_full_is_one_line_with_the_file(
    capsys, pair_words, tmp_path, monkeypatch, full_disk, command, written, limit
):
    monkeypatch.chdir(tmp_path)
    run(capsys, command, *pair_words, "--prompt", "a", *written)  # fingerprints are cached
    (tmp_path / "out.jsonl").unlink()
    full_disk(limit)
    _, err = run(capsys, command, *pair_words, "--prompt", "a", *written, status=1)
    full_disk(resource.RLIM_INFINITY)
    last = err.splitlines()[-1]
    assert last.startswith(f"anchored {command}: ") and "File too large" in last
    assert "out.jsonl" in last
