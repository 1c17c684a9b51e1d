"""The fluency judge: its messages, how grades are read, and means that leave failures out."""

import pytest
from chat_server import Say, user_text

from anchored.eval.quality.fluency import (
    CRITERIA,
    EMPTY,
    RUBRIC,
    fluency_rows,
    fluency_summary,
    grade,
)
from anchored.eval.recorded_texts import RecordedText


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Feedback: not bad [RESULT] 4", 4),  # the line that is asked for
        ("Feedback: fine.\n**[RESULT]** (3).", 3),
        ("[RESULT] 5 would be\ntoo much. [RESULT] 4/5", 4),
        ("[RESULT] 2 is too low. [RESULT] 5", None),
        ("Not [RESULT] 4", None),
        ("[RESULT] 3 or 4", None),
        ("[RESULT] 4\n\nOr 3.", None),
        ("[RESULT] 6", None),
    ],
)
def test_a_grade_is_a_whole_number_from_1_to_5_after_its_mark(answer, expected):
    assert grade(answer) == expected


WHOLE_RUBRIC = (*CRITERIA, *RUBRIC.values())


def text(words, *, setting="k=1", seed=0):
    return RecordedText(setting=setting, id=words, seed=seed, text=words, prompt="PROMPT")


def test_grades_are_those_of_the_judge_and_failures_are_counted_not_scored(server, chat_client):
    def script(body):
        words = user_text(body)
        assert "PROMPT" not in words and all(part in words for part in WHOLE_RUBRIC)
        if "never sent" in words:
            return Say(status=400, raw="too long")
        if "mute" in words:
            return Say("no grade")
        return Say(f"[RESULT] {words.partition('grade ')[2][0]}")

    texts = [
        *(text(f"grade {digit}") for digit in (5, 2)),
        *(text(f"grade {digit}", seed=1) for digit in (4, 4, 1)),
        text("never sent", seed=1),
        text("mute", seed=0),
        text(" \n"),
        text("never sent", setting="none"),
    ]
    server.script = script
    rows = fluency_rows(texts, chat_client())
    assert [row["fluency"] for row in rows] == [5, 2, 4, 4, 1, None, None, None, None]
    assert rows[5]["problem"] == "status 400: 'too long'"
    assert rows[6]["problem"] == "none of 3 answers could be read"
    assert rows[7]["problem"] == EMPTY
    first, none = fluency_summary(rows)
    # Seed 0: (5 + 2) / 2; seed 1: (4 + 4 + 1) / 3.
    assert first["fluency"]["mean"] == (3.5 + 3.0) / 2 and first["fluency"]["num_seeds"] == 2
    assert first["grades"] == {"1": 1, "2": 1, "3": 0, "4": 2, "5": 1}
    assert [first[name] for name in ("num_judged", "num_empty", "num_failed")] == [5, 1, 2]
    assert (none["fluency"], none["num_failed"]) == (None, 1)
    # Equal texts have one grade; what failed is sent again; the empty text is not sent.
    assert len(server.requests) == 4 + 2 + 3
