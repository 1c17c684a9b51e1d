"""Fluency by a judge: one grade from 1 to 5 for each text, by the paper's rubric."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from ..recorded_texts import RecordedText, figure_over_seeds, rows_by_setting
from .chat_client import ChatClient, Message, Sampling, messages_of, verdict_form, verdict_of

FLUENCY_METRIC: Final = "fluency_v3"
"""Version of the messages, the rubric and the reading of grades."""
SAMPLING: Final = Sampling(temperature=1.0, top_p=0.9, max_tokens=1024)
"""Sampling of Prometheus-Eval: a grade is one draw."""
CRITERIA: Final = (
    "Judge ONLY the local writing quality of the continuation as standalone text. Evaluate "
    "grammar, syntax, punctuation/quotation correctness, word choice, sentence flow, and "
    "consistency of tense, person, and narrative voice. Be length-neutral: short but well-formed "
    "text can score highly. Do not penalize if it starts or ends mid-sentence (a cut-in). If it "
    "ends mid-sentence, judge only what is shown. Allow creative style (e.g., intentional "
    "fragments or ellipses) when clearly deliberate and controlled.",
    "Do NOT use any knowledge, recognition, or suspicion that the continuation resembles a "
    "specific existing/copyrighted text when scoring. Ignore whether you think the text is from a "
    "known book, quote, or dataset. Score ONLY what is visible in the continuation's mechanics and "
    "readability.",
)
RUBRIC: Final = {
    1: "Difficult to understand due to pervasive grammar/syntax/punctuation errors, chaotic "
    "phrasing, or severe incoherence. Meaning is frequently unclear even allowing for creative "
    "style.",
    2: "Often hard to follow. Multiple serious mechanical issues (grammar, punctuation/quotes, "
    "agreement), frequent awkward phrasing, or uncontrolled shifts in tense/person/voice; "
    "structure feels sloppy rather than intentional.",
    3: "Generally readable but uneven. Noticeable issues (awkward phrasing, choppy transitions, "
    "minor mechanical errors, unclear referents) sometimes disrupt flow, but the main meaning "
    "remains accessible.",
    4: "Clear and coherent with minor, infrequent issues. Mechanics are mostly correct; flow is "
    "smooth overall; any nonstandard choices feel intentional and controlled.",
    5: "Polished and natural. Mechanics are precise (or deliberately bent with control). "
    "Sentence/paragraph flow is consistently smooth; tense/person/voice remain consistent "
    "throughout.",
}
"""Source: He et al., "Anchored Decoding", table "Custom Prometheus rubric"."""
EMPTY: Final = "the text is empty"
_GRADE = verdict_form(r"([1-5])(?:\.0+)?(?:\s*/\s*5)?", label="feedback")


def fluency_messages(text: str) -> list[Message]:
    """The messages to a judge: the rubric, then the text, without a reference or its prompt.
    Source: Kim et al. 2024, "Prometheus 2", absolute grading; the words are this project's."""
    levels = "\n".join(f"Score {grade}: {meaning}" for grade, meaning in RUBRIC.items())
    task = (
        "Grade the continuation below by the rubric, and by nothing else.\n"
        "1. Write short feedback that follows the rubric strictly.\n"
        "2. Then write one whole number from 1 to 5, as the rubric gives it.\n"
        '3. Your answer must read: "Feedback: (your feedback) [RESULT] (a number from 1 to 5)", '
        "and nothing after that."
    )
    parts = {
        "Task": task,
        "Rubric": "\n".join((*CRITERIA, levels)),
        "Continuation to grade": text,
        "Feedback": "",
    }
    system = (
        "You are a fair judge of writing. You grade one text by a rubric, in absolute terms, "
        "without comparing it with other texts."
    )
    content = "\n\n".join(f"### {title}\n{part}".strip() for title, part in parts.items())
    return messages_of(system, content)


def grade(answer: str) -> int | None:
    """The grade at the end of an answer, as 4, 4.0 or 4/5; None if that is none from 1 to 5."""
    value = verdict_of(answer, _GRADE)
    return None if value is None else int(value)


def fluency_rows(texts: Sequence[RecordedText], client: ChatClient) -> list[dict[str, Any]]:
    """A row for each text: its key, its grade or None, the problem without one, the answer. A text
    without a word is not sent; a failure is no grade. Raises: RequestRefused."""

    def row(text: RecordedText) -> dict[str, Any]:
        if not text.text.strip():
            return {**text.key, "fluency": None, "problem": EMPTY, "answer": ""}
        reading = client.ask(fluency_messages(text.text), SAMPLING, grade)
        grades = {"fluency": reading.value, "problem": reading.problem, "answer": reading.answer}
        return {**text.key, **grades}

    return client.each(row, texts, "fluency")


def fluency_summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean grade over seeds (None without one), counts of grades and of failures by setting. rows:
    of `fluency_rows`. A seed in which no text has a grade has no mean."""
    return [{"setting": name, **_figures(same)} for name, same in rows_by_setting(rows).items()]


def _figures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    graded = [row for row in rows if row["fluency"] is not None]
    counts = Counter(row["fluency"] for row in graded)
    num_empty = sum(row["problem"] == EMPTY for row in rows)
    return {
        "fluency": figure_over_seeds(graded, "fluency"),
        "grades": {str(value): counts[value] for value in RUBRIC},
        "num_judged": len(graded),
        "num_empty": num_empty,
        "num_failed": len(rows) - len(graded) - num_empty,
    }
