"""One schema of --prompt-file: what one command writes, every other one takes."""

import io
import json

import pytest
from command_line import refused, run
from json_lines import read_json_lines, write_json_lines

from anchored.tools.commands.generate import GenerateConfig
from anchored.tools.commands.words import parse
from anchored.tools.quickstart.protected_works import read_works, write_inputs

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
OPTIONS = {"generate": ["--max-new-tokens", "2"], "score": []}


def written_by_prompts(capsys, folder):
    record = {"id": "one", "input": "the keeper", "reference": "of the lamp", "title": "A"}
    record |= {"characters": [["Ann"]], "group": 3, "answer": "a lamp"}
    source = write_json_lines(folder / "books.jsonl", [record])
    output = str(folder / "prompts.jsonl")
    run(capsys, "prompts", "--kind", "books", "--input", source, "--output", output)
    return output


def written_by_quickstart(capsys, folder):
    write_inputs(read_works()[:1], folder / "prompts.jsonl", folder / "works.jsonl")
    (row,) = read_json_lines(folder / "prompts.jsonl")
    short = {
        name: row[name][:20] for name in ("prompt", "reference")
    }  # the pair's context is short
    return write_json_lines(folder / "prompts.jsonl", [row | short])


def written_by_retrieve(capsys, folder):
    prompts = write_json_lines(folder / "plain.jsonl", [KEYS])
    corpus = write_json_lines(folder / "corpus.jsonl", [{"id": 7, "text": "the keeper of it"}])
    output = str(folder / "prompts.jsonl")
    run(capsys, "retrieve", "--corpus", corpus, "--prompt-file", prompts, "--output", output)
    (row,) = read_json_lines(folder / "prompts.jsonl")
    assert row == KEYS | {"passage": "the keeper of it", "passage_id": 7, "score": row["score"]}
    return output


WRITERS = [written_by_prompts, written_by_quickstart, written_by_retrieve]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("command", [*OPTIONS, "retrieve", "calibrate", "sweep"])
def test_what_one_command_writes_every_other_takes(capsys, pair_words, tmp_path, write, command):
    file = write(capsys, tmp_path)
    if command == "calibrate":  # it counts the prompts that it has read before it loads a model
        assert "1 prompts show an NCR of at most" in refused(
            *(capsys, command, *pair_words, "--prompt-file", file),
            *("--output", str(tmp_path / "calibration")),
        )
        return
    if command == "sweep":
        config = tmp_path / "sweep.toml"
        pair = f'safe = "{pair_words[1]}"\nrisky = "{pair_words[3]}"\n'
        method = '[[methods]]\nrule = "anchored"\nlabel = "ours"\nsettings = { k = 1.0 }\n'
        config.write_text(f'{pair}prompts = "{file}"\n{method}')
        assert "3 settings x 1 prompts" in run(capsys, command, str(config), "--dry-run")[0]
        return
    more = OPTIONS.get(command)
    if command == "retrieve":
        corpus = write_json_lines(tmp_path / "c.jsonl", [{"text": "the keeper"}])
        words = ["--corpus", corpus, "--prompt-file", file]
    else:
        words = [*pair_words, "--prompt-file", file, *more]
    (row,) = map(json.loads, run(capsys, command, *words)[0].splitlines())
    asked = read_json_lines(tmp_path / "prompts.jsonl")[0]
    kept = asked.keys() - {"passage", "passage_id", "score"}
    assert {key: row[key] for key in kept} == {key: asked[key] for key in kept}


@pytest.mark.parametrize("command", [*OPTIONS, "calibrate", "retrieve"])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (KEYS | {"temperature": 1}, "has an unknown key 'temperature'; known: id, prompt, ref"),
        (KEYS | {"messages": []}, "has an unknown key 'messages'"),
        (KEYS | {"characters": ["Ann"]}, "characters[0] must be a list of texts"),
        (KEYS | {"title": 3}, "title must be text"),
    ],
)
def test_other_keys_are_refused_in_one_line(capsys, pair_words, tmp_path, command, line, message):
    file = write_json_lines(tmp_path / "p.jsonl", [line])
    words = [] if command == "retrieve" else pair_words
    words = [*words, "--corpus", file] if command == "retrieve" else words
    assert f"line 1 {message}" in refused(capsys, command, *words, "--prompt-file", file).replace(
        "line 1:", "line 1"
    )


def test_results_of_generate_are_evaluated_as_they_are(capsys, pair_words, tmp_path):
    prompts = write_json_lines(tmp_path / "prompts.jsonl", [KEYS])
    output = tmp_path / "new" / "results.jsonl"
    words = [*pair_words, "--prompt-file", prompts, "--max-new-tokens", "2"]
    out, _ = run(capsys, "generate", *words, "--output", str(output))
    assert out == "" and len(read_json_lines(output)) == 1
    assert "exists: give --overwrite" in refused(
        capsys, "generate", *words, "--output", str(output)
    )
    run(capsys, "generate", *words, "--output", str(output), "--overwrite")
    run(capsys, "evaluate", str(output), "--only", "copying", "nonliteral", "answers")


@pytest.mark.parametrize(
    ("command", "option", "more"),
    [
        ("generate", "--prompt", ["--max-new-tokens", "3", "--json"]),
        ("score", "--prompt", ["--continuation", "a"]),
        ("score", "--continuation", ["--prompt", "a"]),
    ],
)
def test_texts_come_from_a_word_a_file_or_stdin(
    capsys, pair_words, tmp_path, monkeypatch, command, option, more
):
    (tmp_path / "text.txt").write_text("@the caf\u00e9\n\nof it\r\n")
    outputs = []
    for word in ("@@the caf\u00e9\n\nof it", f"@{tmp_path}/text.txt", "-"):
        monkeypatch.setattr("sys.stdin", io.StringIO("@the caf\u00e9\n\nof it\n"))
        outputs.append(run(capsys, command, *pair_words, option, word, *more)[0])
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("@{folder}/nowhere", "there is no file"),
        ("@{folder}", "is a folder, not a file"),
        ("@", "is a folder, not a file"),
        ("@{folder}/empty", "empty holds no text"),
        ("@{folder}/latin", "latin is not UTF-8 text"),
        ("-", "stdin holds no text"),
    ],
)
def test_a_text_that_cannot_be_read_is_one_line(
    capsys, pair_words, tmp_path, monkeypatch, word, message
):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "latin").write_bytes("caf\u00e9".encode("latin-1"))
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    words = ["generate", *pair_words, "--prompt", word.format(folder=tmp_path)]
    assert message in refused(capsys, *words)


def test_a_prompt_that_is_the_name_of_a_file_is_remarked(capsys, pair_words, tmp_path, caplog):
    (tmp_path / "text.txt").write_text("the keeper")
    name = str(tmp_path / "text.txt")
    run(capsys, "generate", *pair_words, "--prompt", name, "--max-new-tokens", "1")
    assert f"the prompt {name} is the name of a file: @{name} reads its text" in caplog.text


@pytest.mark.parametrize(
    ("word", "text"),
    [(r"\n", "\n"), (r"a\tb\r\\n", "a\tb\r\\n"), ("\n", "\n"), ("caf\u00e9", "caf\u00e9")],
)
def test_a_stop_may_be_written_with_escapes(pair_words, word, text):
    words = [*pair_words, "--prompt", "a", "--stop", word, "."]
    assert parse(GenerateConfig, "generate", words).stop == (text, ".")


@pytest.mark.parametrize("word", [r"\end", "a\\", r"\x0a"])
def test_an_escape_that_means_nothing_is_refused(capsys, pair_words, word):
    words = ["generate", *pair_words, "--prompt", "a", "--stop", word]
    assert r"give \n, \t or \r, or \\ for a backslash" in run(capsys, *words, status=2)[1]


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
