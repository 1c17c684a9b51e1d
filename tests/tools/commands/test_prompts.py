"""anchored prompts: the paper's templates, verbatim, around the texts of a data set."""

import json

import pytest
from command_line import run

from anchored.eval.experiments.sweep import load_prompts
from anchored.tools.commands.evaluation.prompts import Template, load_templates

BOOK = {"id": "bookmia.00.11", "title": "Tides", "input": "The bell {rang}", "reference": "twice."}
PROMPTS = {
    "books": "Complete the prefix:\nThe bell {rang}",
    "news": "Complete the prefix:\nThe bell {rang}",
    "creative": "Complete the prefix:\nThe bell {rang}",
    "nonliteral": "Continue the text to compose an original story about 500 words in length:\n"
    "The bell {rang}",
}


def written(capsys, kind, source, tmp_path):
    output = tmp_path / "prompts" / f"{kind}.jsonl"
    words = ("prompts", "--kind", kind, "--input", str(source), "--output", str(output))
    status, out, err = run(capsys, *words)
    assert status == 0, err
    assert f"prompts of {kind} in " in out
    return load_prompts(output)  # as a sweep reads them


@pytest.mark.parametrize("kind", PROMPTS)
def test_records_stand_in_the_template(kind, tmp_path, capsys):
    (tmp_path / "array.json").write_text(json.dumps([BOOK, BOOK | {"id": "b"}]))
    first, second = written(capsys, kind, tmp_path / "array.json", tmp_path)
    assert first.prompt == PROMPTS[kind] and second.id == "b"
    assert (first.id, first.title, first.domain) == ("bookmia.00.11", "Tides", kind)
    assert first.reference == ("" if kind == "nonliteral" else " twice.")


@pytest.mark.parametrize(
    ("text", "reference", "seam"),
    [
        ("The bell", "rang", " rang"),  # as in all records of CopyBench
        ("The bell", " rang", " rang"),
        ("The bell\n", "Rang", "\nRang"),  # else the line end would be a token of its own
        ("The bell ", " rang", " rang"),
        ("The bell", ", they say", ", they say"),
        ("The bell", '"rang', ' "rang'),
    ],
)
def test_the_seam_between_a_text_and_its_continuation_belongs_to_the_reference(
    text, reference, seam, tmp_path, capsys
):
    record = {"id": "a", "input": text, "reference": reference}
    (tmp_path / "own.jsonl").write_text(json.dumps(record))
    (prompt,) = written(capsys, "books", tmp_path / "own.jsonl", tmp_path)
    assert (prompt.prompt, prompt.reference) == ("Complete the prefix:\nThe bell", seam)


@pytest.mark.parametrize(("kind", "name"), [("news", "article"), ("creative", "body")])
def test_a_whole_text_is_cut_into_what_is_given_and_how_it_goes_on(kind, name, tmp_path, capsys):
    words = [f"word{number}" for number in range(400)]
    (tmp_path / "whole.jsonl").write_text(json.dumps({name: " ".join(words)}))
    (prompt,) = written(capsys, kind, tmp_path / "whole.jsonl", tmp_path)
    assert prompt.prompt == "Complete the prefix:\n" + " ".join(words[:170])
    assert prompt.reference == " " + " ".join(words[170:340])


def test_the_answer_of_a_question_is_no_text_to_protect(tmp_path, capsys):
    record = {"id": "bookmia_qa.0.59", "input": "Who rang the bell?", "reference": "the keeper"}
    (tmp_path / "data.qa.json").write_text(json.dumps([record]))
    (prompt,) = written(capsys, "questions", tmp_path / "data.qa.json", tmp_path)
    assert prompt.prompt.endswith("\n\nQuestion: Who rang the bell?\nAnswer:")
    assert prompt.reference == "" and prompt.about == {"answer": "the keeper"}


def test_what_measures_of_the_texts_read_is_kept(tmp_path, capsys):
    own = {"reference_characters": [["Ann"]], "group": "rare"}
    (tmp_path / "stories.json").write_text(json.dumps([BOOK | own]))
    (prompt,) = written(capsys, "nonliteral", tmp_path / "stories.json", tmp_path)
    assert prompt.about == own


def test_entities_are_lines_or_records(tmp_path, capsys):
    (tmp_path / "entities.txt").write_text("Ada Lovelace\n\nSara Paxton\n")
    (tmp_path / "entities.jsonl").write_text('{"entity": "Ada Lovelace"}\n')
    ada, sara = written(capsys, "bios", tmp_path / "entities.txt", tmp_path)
    assert ada.prompt == (
        "Write a factual biography about Ada Lovelace. Include only factual information that you "
        "are confident in.\n Biography:"
    )
    assert (sara.id, sara.title) == ("bios-0002", "Sara Paxton")
    (tmp_path / "prompts" / "bios.jsonl").unlink()
    assert written(capsys, "bios", tmp_path / "entities.jsonl", tmp_path) == [ada]


def test_labels_of_factscore_bring_how_rare_an_entity_is(tmp_path, capsys):
    """A line of labeled/ChatGPT.jsonl has a text of its own, which is not read."""
    label = {"input": "Question: Tell me", "output": "x", "topic": "Ada Lovelace"}
    (tmp_path / "labels.jsonl").write_text(json.dumps(label | {"cat": ["rare", "Europe"]}) + "\n")
    (prompt,) = written(capsys, "bios", tmp_path / "labels.jsonl", tmp_path)
    assert prompt.title == "Ada Lovelace" and prompt.about == {"group": "rare"}


def test_templates_are_checked(tmp_path):
    with pytest.raises(ValueError, match=r"must hold {text} once, got 'Once'"):
        Template(template="Once", text="input")
    (tmp_path / "some.toml").write_text('[books]\ntemplate = "{text}"\ntext = "input"\n')
    with pytest.raises(ValueError, match="no template of bios, creative, news, nonliteral"):
        load_templates(tmp_path / "some.toml")
