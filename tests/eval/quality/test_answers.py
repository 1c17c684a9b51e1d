"""Answers to questions of fact: how they are compared, and what evaluate makes of them."""

import json

import pytest
from command_line import run

from anchored.eval.quality.answers import answer_f1


@pytest.mark.parametrize(
    ("text", "answer", "f1"),
    [
        (" The keeper.\n\nQuestion: Who", "the keeper", 1.0),
        (" a Keeper of lamps", "the keeper", 0.5),  # 1 of 3, and 1 of 1
        ("ships", "the keeper", 0.0),
        ("", "the keeper", 0.0),
        ("bell bell", "bell", 2 / 3),  # a word counts once
    ],
)
def test_words_of_the_first_line_are_compared(text, answer, f1):
    assert answer_f1(text, answer) == pytest.approx(f1)


def test_answers_are_measured_where_questions_have_one(capsys, tmp_path):
    rows = [
        {"setting": name, "id": id, "seed": seed, "text": text}
        for name, text in (("a", "Keeper"), ("b", "ships"))
        for seed in (0, 1)
        for id in "pq"
    ]
    prompts = [{"id": "p", "answer": "the keeper"}, {"id": "q", "answer": "two ships"}]
    for name, records in (("texts", rows), ("prompts", prompts)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
    words = ["evaluate", f"{tmp_path}/texts.jsonl", "--prompts", f"{tmp_path}/prompts.jsonl"]
    out, err = run(capsys, *words)
    assert [line.split() for line in out.splitlines()[2:4]] == [
        ["a", "0.500", "(0.000)", "4"],
        ["b", "0.333", "(0.000)", "4"],
    ], out + err
    _, err = run(capsys, *words[:2], "--only", "answers", status=1)
    assert 'has no "answer": give --prompts FILE' in err
