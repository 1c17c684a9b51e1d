"""anchored prompts: the paper's templates, verbatim, around the texts of a data set."""

import json

import pytest
from command_line import run

from anchored.eval.experiments.experiment import load_prompts

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
