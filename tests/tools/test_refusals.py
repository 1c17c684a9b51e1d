"""Bad command lines: one line on stderr, the status of their kind, and nothing written.

One line a checker: every refusal is tested in full where it is made. A line at the margin begins
commands; those below it have a sign, = of wrong words (status 2) or ~ of work that failed (1), the
words that are added and, after a bar, words of the message. {name} is one of `places`.
"""

import os
import shlex
from pathlib import Path

import pytest

from anchored.tools.cli import COMMANDS, FAILED_STATUS, USAGE_STATUS, main

TABLE = """
generate {pair} --max-new-tokens 3
    = --prompt a --k 1 --k 2 | --k: given twice, and takes one value
    = --prompt a --debt some | --debt: invalid choice: 'some'
    = --prompt a --ledger {new}/ | names a folder, not a file to write
    = --prompt a --rule rcad --setting alpha=nan | alpha must be
    = --prompt a --level token --max-new-bytes 9 | --max-new-bytes is for --level byte
    = --prompt a --num-return-sequences 1000001 | at most 1,000,000 texts
    = | give either --prompt, --prompt-file, --messages or --continue-from
    ~ --prompt a --ledger {existing} | exists: give --overwrite to replace it
    ~ --prompt a --ledger {folder} --overwrite | is a folder, not a file to write
    ~ --prompt a --ledger {fifo} --overwrite | is not a regular file
    ~ --prompt a --ledger {existing}/new | cannot be written: Not a directory
    ~ --prompt-file {prompts} --ledger {prompts} --overwrite | the command reads it
    = --prompt a --output {new} --ledger {new} | two outputs cannot both be written
    ~ --prompt-file {missing} | missing: No such file or directory
    ~ --prompt-file {prompts} --rule rcad | has no "passage", which the rule rcad reads
generate --prompt a
    = --safe {safe} | a pair needs --safe and --risky, or --pair
score {pair}
    = --prompt a | give either --prompt and --continuation, or --prompt-file
verify {pair}
    = | the following arguments are required: --ledger
    = --ledger {prompts} --picture x.txt | --picture must end in one of
    ~ --ledger {prompts} | is not the header
retrieve --corpus {texts} --prompt-file {prompts}
    = --instruction Find | --instruction needs an --encoder
serve {pair}
    = --max-k -1 | --max-k must be in
    = --max-bank 1 | bank 20 of the rule is above max_bank 1
    = --host 0.0.0.0 | give an --api-key-file
    ~ --max-length 100000 --port 0 | --max-length must be <= 128
serve {pair} --engine vllm
    = --rule no_opt | in vLLM the rule must be Anchored(...) or Pathwise(...), got NoOpt(
    = --level byte | --engine vllm decodes tokens, got --level byte
    = --batch-size 4 | --batch-size is of --engine decoder: vLLM has --engine-args
    = --expose-logprobs | --expose-logprobs is of --engine decoder: vLLM tells those of p_s
    = --engine-args a=1 a=2 | --engine-args gives a twice: 1 and 2
ledgers
    ~ --journal {missing} | there is no folder
accounts
    ~ --accounts {broken} | is not valid TOML
accounts apply
    = {broken} --extra 5 | --account and --extra go together
accounts settle
    ~ server --accounts {missing} | there is no file
decontaminate --against {texts} --output {new}
    = | --source is needed, or a --mixture of several
tokenize --source s --tokenizer {safe} --output {new}
    = | give one of --input, --dataset
    ~ --input {texts} --end-token nowhere | has no token nowhere (--end-token)
plan
    ~ --config nothing-of-this-name | there is no file nothing-of-this-name
    = --document a | document must be SOURCE:INPUT_FILE:RECORD, got 'a'
    ~ --step 1 | --stage must be one of stage1, stage2, got ''
pretrain --config tinycomma-1.8b-stage1 --dry-run
    = --mfu 2 | mfu must be in (0, 1], got 2.0
export --checkpoint {folder} --tokenizer {safe}
    ~ --output {folder} | exists: name a new folder
look
    = story | unrecognized arguments: story
quickstart
    ~ --model {missing} | there is no folder
    ~ --output {folder} | holds files that are no quickstart's
demo {pair}
    = --port 0 | --port must be in [1, 65535], got 0
prompts --kind books --output {new}
    ~ --input {prompts} | record 1 has no text 'input'
sweep
    = | the following arguments are required: FILE
    ~ {broken} --dry-run | is not valid TOML
compare
    = downstream --model ours | --model must be LABEL=FOLDER
    ~ quickstart-methods --dry-run | it has no benchmarks
evaluate
    = {texts} --only fluency | a judge is needed
    ~ {texts} --only copying | has no "reference": give --prompts FILE
    ~ {texts} --only fluency --judge-model m | the environment has no key
paper
    = nothing --books {folder} --bios {folder} | the paper's pairs are
calibrate {pair} --prompt-file {prompts}
    ~ | line 1 must have the key "id"
certify {pair} --prompt-file {prompts}
    = --temperature 0 | --temperature must be > 0: greedy decoding has no bound
lm-eval
    = run --limit x | limit
bench kernel
    = --threads -1 | --threads must be >= 1
bench decode
    = --methods nonsense | methods must be all or of
bench pretrain
    = --rounds 3 | rounds must be even, got 3
    ~ --config common_pile | must give training.local_batch_size
bench
    = | is the first word of bench kernel, bench decode, bench pretrain
nonsense
    = | unknown command 'nonsense'
"""


def lines() -> list[tuple[str, int, str]]:
    """(command line, status, words of the message) of every line of the table."""
    table, command = [], ""
    for line in TABLE.strip().splitlines():
        if not line.startswith(" "):
            command = line
            continue
        sign, rest = line.strip()[0], line.strip()[1:]
        words, _, message = rest.partition("|")
        status = USAGE_STATUS if sign == "=" else FAILED_STATUS
        table.append((f"{command} {words.strip()}", status, message.strip()))
    return table


@pytest.fixture(scope="module")
def places(tmp_path_factory, pair_folders) -> dict[str, Path]:
    """Good and bad files and folders, by name; nothing is at `missing`."""
    root = tmp_path_factory.mktemp("bad")
    safe, risky = pair_folders
    files = {"existing": "kept", "broken": "[training\n", "prompts": '{"prompt": "a"}\n'}
    files["texts"] = '{"text": "the keeper of the lamp"}\n'
    for name, content in files.items():
        (root / name).write_text(content)
    (root / "folder").mkdir()
    (root / "folder" / "of_somebody").touch()
    os.mkfifo(root / "fifo")
    named = {path.name: path for path in root.iterdir()}
    return {**named, "safe": safe, "risky": risky, "missing": root / "missing"}


def words_of(line: str, places: dict[str, Path], new: Path) -> list[str]:
    pair = f"--safe {places['safe']} --risky {places['risky']}"
    return shlex.split(line.format(pair=pair, new=new, **places))


def contents(folder: Path) -> dict[Path, tuple[int, ...]]:
    stats = {path: path.lstat() for path in folder.rglob("*")}
    return {path: (stat.st_size, stat.st_mtime_ns, stat.st_mode) for path, stat in stats.items()}


@pytest.mark.parametrize(("line", "status", "message"), lines())
def test_bad_words_and_inputs_are_one_line_and_change_nothing(
    line, status, message, places, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    before = contents(places["folder"].parent)
    with pytest.raises(SystemExit) as end:
        main(words_of(line, places, tmp_path / "new"))
    out, err = capsys.readouterr()
    assert end.value.code == status, err
    assert err.startswith("anchored") and err.count("\n") == 1 and message in err and not out
    assert contents(places["folder"].parent) == before and not list(tmp_path.iterdir())


def test_the_table_has_every_command():
    commands = [line.split(" -")[0].split(" {")[0] for line, *_ in lines()]
    assert all(any(f"{line} ".startswith(f"{name} ") for line in commands) for name in COMMANDS)
