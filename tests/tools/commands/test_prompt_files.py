"""Prompts: the paper's templates around a data set, and one schema of --prompt-file, which every
command writes and takes."""

import io
import json

import pytest
from command_line import refused, run
from json_lines import read_json_lines, write_json_lines

from anchored.eval.experiments.experiment import load_prompts
from anchored.tools.commands.generate import GenerateConfig
from anchored.tools.commands.words import parse

KEYS = {
    "id": "one",
    "prompt": "the keeper",
    "reference": " of the lamp",
    "title": "The keeper",
    "characters": [["Ann"], ["Ben", "Benny"]],
    "group": "rare",
    "answer": "a lamp",
}


def test_what_prompts_and_retrieve_write_every_other_command_takes(capsys, pair_words, tmp_path):
    record = {"input" if key == "prompt" else key: value for key, value in KEYS.items()}
    source = write_json_lines(tmp_path / "books.jsonl", [record])
    corpus = write_json_lines(tmp_path / "corpus.jsonl", [{"id": 7, "text": "the keeper of it"}])
    made, output = str(tmp_path / "made.jsonl"), str(tmp_path / "prompts.jsonl")
    run(capsys, "prompts", "--kind", "books", "--input", source, "--output", made)
    run(capsys, "retrieve", "--corpus", corpus, "--prompt-file", made, "--output", output)
    ((first,), (line,)) = map(
        read_json_lines, (tmp_path / "made.jsonl", tmp_path / "prompts.jsonl")
    )
    assert first == KEYS | {"prompt": f"Complete the prefix:\n{KEYS['prompt']}", "domain": "books"}
    assert line == first | {"passage": "the keeper of it", "passage_id": 7, "score": line["score"]}
    for words in (["generate", "--max-new-tokens", "2"], ["score"]):
        out, _ = run(capsys, *words, *pair_words, "--prompt-file", output)
        assert first.items() <= json.loads(out).items()
    # It counts the prompts that it has read before it loads a model.
    words = ["calibrate", *pair_words, "--prompt-file", output, "--output", str(tmp_path / "c")]
    assert "1 prompts show an NCR of at most" in refused(capsys, *words)


def test_a_line_with_another_key_is_refused(capsys, pair_words, tmp_path):
    file = write_json_lines(tmp_path / "p.jsonl", [KEYS | {"temperature": 1}])
    message = refused(capsys, "generate", *pair_words, "--prompt-file", file)
    assert "line 1 has an unknown key 'temperature'; known: id, prompt, ref" in message


def test_a_text_comes_from_a_word_a_file_or_stdin(capsys, pair_words, tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("@the caf\u00e9\n\nof it\r\n")
    outputs = []
    for word in ("@@the caf\u00e9\n\nof it", f"@{tmp_path}/text.txt", "-"):
        monkeypatch.setattr("sys.stdin", io.StringIO("@the caf\u00e9\n\nof it\n"))
        words = [*pair_words, "--prompt", word, "--continuation", "a"]
        outputs.append(run(capsys, "score", *words)[0])
    assert outputs[0] == outputs[1] == outputs[2]
    words = [*pair_words, "--prompt", "a", "--stop", r"a\t", "."]
    assert parse(GenerateConfig, "generate", words).stop == ("a\t", ".")


BOOK = {"id": "bookmia.00.11", "title": "Tides", "input": "The bell {rang}", "reference": "twice."}


@pytest.fixture
def written(capsys, tmp_path):
    """Prompts, as a sweep reads them, of a data set of JSON values or of text."""

    def write(kind, data, name="mine.jsonl"):
        (tmp_path / name).write_text(data if isinstance(data, str) else json.dumps(data))
        words = ("prompts", "--kind", kind, "--input", str(tmp_path / name), "--overwrite")
        output = tmp_path / "prompts" / f"{kind}.jsonl"
        out, _ = run(capsys, *words, "--output", str(output))
        assert f"prompts of {kind} in " in out
        return load_prompts(output)

    return write


def test_records_stand_in_the_template(written):
    first, second = written("books", [BOOK, BOOK | {"id": "b"}], "array.json")
    assert first.prompt == "Complete the prefix:\nThe bell {rang}"
    assert (first.id, first.title, first.domain) == ("bookmia.00.11", "Tides", "books")
    # The seam between a text and its continuation belongs to the reference.
    assert (first.reference, second.id) == (" twice.", "b")
    (comma,) = written("books", BOOK | {"reference": ", they say"})
    assert comma.reference == ", they say"
    (other,) = written("nonliteral", BOOK)
    assert other.prompt.startswith("Continue the text to compose an original")
    assert other.prompt.endswith(":\nThe bell {rang}") and other.reference == ""


def test_a_whole_text_is_cut_into_what_is_given_and_how_it_goes_on(written):
    words = [f"word{number}" for number in range(400)]
    (prompt,) = written("news", {"article": " ".join(words)})
    assert prompt.prompt == "Complete the prefix:\n" + " ".join(words[:170])
    assert prompt.reference == " " + " ".join(words[170:340])


def test_the_answer_of_a_question_is_no_text_to_protect(written):
    record = {"id": "bookmia_qa.0.59", "input": "Who rang the bell?", "reference": "the keeper"}
    (prompt,) = written("questions", [record], "data.qa.json")
    assert prompt.prompt.endswith("\n\nQuestion: Who rang the bell?\nAnswer:")
    assert prompt.reference == "" and prompt.about == {"answer": "the keeper"}
