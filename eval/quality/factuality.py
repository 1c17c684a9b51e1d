"""Factual precision of long texts: claims, evidence for each, and a judge's verdict.

Claims are taken from a window that slides over the sentences, and judged by evidence that was
retrieved for each. Source: Min et al. 2023, "FActScore"; Song et al. 2024, "VeriScore". The words
of the messages are this project's.
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from ..paid_requests import RequestFailed
from ..recorded_texts import RecordedText, figure_over_seeds, grouped, rows_by_setting
from ..retrieval.evidence import Evidence, Retriever
from ..segmentation import sentences
from .chat_client import (
    ChatClient,
    Message,
    Reading,
    Sampling,
    messages_of,
    verdict_form,
    verdict_of,
)

FACTUALITY_METRIC: Final = "factuality_v3"
"""Version of the sentences, windows, messages and the reading of answers."""
SAMPLING: Final = Sampling(temperature=0.0, max_tokens=1000)
NUM_BEFORE, NUM_AFTER = 3, 1
"""Sentences before and after the one whose claims are taken."""
NUM_WITHOUT_LEAD: Final = 5
"""A longer text has its first sentence, which names its subject, in every window."""

_BULLET = re.compile(
    # No letter with a full stop: that may be an initial.
    r"^\s*(?:[-*\u2010-\u2015\u2022\u25aa\u25cf]|\(?(?:\d+[.)]|[A-Za-z]\)))\s+(.*\S)\s*$"
)
_NOTHING = re.compile(r"[\W_]*no verifiable claims?[\W_]*", re.IGNORECASE)
_AGAINST = ("unsupported", "not supported", "contradicted", "inconclusive")
_VERDICT = verdict_form(f"(supported|{'|'.join(_AGAINST)})", before="###", after="###")

_EXTRACTION = """\
You take apart what a text says into facts that could be looked up.

You get a passage in which one sentence stands between <SOS> and <EOS>. List every verifiable fact \
that this sentence states, one a line, each line beginning with "- ".
- A fact is fine-grained: one event, state or relation, with its time and place where the sentence \
gives them.
- A fact can be understood by itself: it names people and things, with no pronoun that needs the \
passage, which you use to find the names.
- Leave out opinions, advice, hypotheses, feelings and what nobody could check.
- Add nothing that the sentence does not say.
If the sentence has no such fact, answer with the line: No verifiable claim.

Passage: Ada Byron was born in London in 1815. <SOS>She married William King in 1835, and was by \
all accounts a charming host.<EOS> Her notes appeared in 1843.
Facts:
- Ada Byron married William King in 1835.

Passage: <SOS>I hope that this short overview was helpful!<EOS>
Facts:
No verifiable claim.

Passage: Marisol Quint studied botany. <SOS>In 1962 her team described three orchids of the Darien \
Gap and founded the journal Epiphyta.<EOS>
Facts:
- Marisol Quint's team described three orchids of the Darien Gap in 1962.
- Marisol Quint's team founded the journal Epiphyta in 1962.
"""
_VERIFICATION = """\
You decide whether search results support a claim.

- Supported: the results state the claim, or it follows from them without doubt. One result is \
enough if no other contradicts it.
- Unsupported: a result contradicts any part of the claim, or the results do not settle it.
Use the results alone, not what you know. End with one line, which is either ### Supported ### or \
### Unsupported ###
"""


def windows(text: str) -> list[str]:
    """Each sentence between <SOS> and <EOS>, with its neighbors: three before it and one after, and
    the first sentence of a text of more than five."""
    split = sentences(text)
    windows = []
    for index, focus in enumerate(split):
        first = max(0, index - NUM_BEFORE)
        lead = split[:1] if len(split) > NUM_WITHOUT_LEAD and first > 0 else []
        before, after = split[first:index], split[index + 1 : index + 1 + NUM_AFTER]
        windows.append(" ".join([*lead, *before, f"<SOS>{focus}<EOS>", *after]))
    return windows


def extraction_messages(window: str) -> list[Message]:
    """The messages that ask a judge for the claims of a sentence."""
    return messages_of(_EXTRACTION, f"Passage: {window}\nFacts:")


def verification_messages(claim: str, evidence: Sequence[Evidence]) -> list[Message]:
    """The messages that ask a judge to decide about a claim."""
    results = [
        f"Search result {number}\nTitle: {text.title}\nLink: {text.link}\nContent: {text.text}"
        for number, text in enumerate(evidence, 1)
    ]
    shown = "\n\n".join(results) or "The search found nothing."
    return messages_of(_VERIFICATION, f"Claim: {claim}\n\n{shown}\n\nDecision:")


def claims_in(answer: str) -> list[str] | None:
    """The claims of an answer, [] if a line denies that there are any; None for another answer.
    Lines before the first claim do not count, nor does a note; any other line that is no claim
    makes the end of a claim uncertain."""
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    bullets = [_BULLET.sub(r"\1", line) if _BULLET.match(line) else None for line in lines]
    first = next((n for n, bullet in enumerate(bullets) if bullet is not None), None)
    if first is None:
        return [] if any(map(_NOTHING.fullmatch, lines)) else None
    claims: list[str] = []
    for line, bullet in zip(lines[first:], bullets[first:], strict=True):
        if (bullet or line).lower().startswith("note:"):
            continue
        if bullet is None:
            return None
        claims += [] if _NOTHING.match(bullet) else [bullet]
    return claims


def verdict(answer: str) -> bool | None:
    """Tell whether a claim is supported; None for an answer without a verdict."""
    value = verdict_of(answer, _VERDICT)
    return None if value is None else value == "supported"


def factuality_rows(
    texts: Sequence[RecordedText], client: ChatClient, retriever: Retriever
) -> list[dict[str, Any]]:
    """A row for each text: its key and group, its claims with verdicts, and its precision.
    precision: supported claims in those that have a verdict; None where none has. Claims of a text
    are different strings. A sentence or claim without an answer is counted, and is no verdict.
    Raises: RequestRefused."""

    def claims_of(window: str) -> Reading[list[str]]:
        return client.ask(extraction_messages(window), SAMPLING, claims_in)

    def judged(claim: str) -> dict[str, Any]:
        try:
            evidence = retriever.evidence(claim)
        except RequestFailed as error:
            return {"claim": claim, "supported": None, "problem": f"no evidence: {error}"}
        reading = client.ask(verification_messages(claim, evidence), SAMPLING, verdict)
        return {"claim": claim, "supported": reading.value, "problem": reading.problem}

    focused = [windows(text.text) for text in texts]
    answers = iter(client.each(claims_of, list(chain(*focused)), "claims"))
    extracted = [[next(answers) for _ in of_text] for of_text in focused]
    # A dictionary keeps the order and drops repetitions.
    unique = [
        list(dict.fromkeys(claim for reading in of_text for claim in reading.value or ()))
        for of_text in extracted
    ]
    verdicts = iter(client.each(judged, list(chain(*unique)), "verdicts"))
    return [
        _row(text, answers_of_text, [next(verdicts) for _ in claims])
        for text, answers_of_text, claims in zip(texts, extracted, unique, strict=True)
    ]


def _row(
    text: RecordedText, extracted: list[Reading[list[str]]], claims: list[dict[str, Any]]
) -> dict[str, Any]:
    known = [claim["supported"] for claim in claims if claim["supported"] is not None]
    return {
        **text.key,
        "group": text.group,
        "precision": sum(known) / len(known) if known else None,
        "num_supported": sum(known),
        "num_verified": len(known),
        "num_sentences": len(extracted),
        "num_failed_sentences": sum(reading.value is None for reading in extracted),
        "num_failed_claims": len(claims) - len(known),
        "problem": next((reading.problem for reading in extracted if reading.problem), None),
        "claims": claims,
    }


def factuality_summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Precision, claims and failures by setting, and within it by group. macro: mean over texts
    with a precision, then over seeds; micro: over the claims of all texts; claims_per_text: over
    all texts. num_without_claims: texts without a claim though no sentence failed, which have no
    precision; num_unscored: texts without one because of failures."""
    summaries = []
    for name, same in rows_by_setting(rows).items():
        in_groups = (row for row in same if row["group"] is not None)
        groups = grouped(in_groups, lambda row: row["group"])
        by_group = {group: _figures(groups[group]) for group in sorted(groups)}
        summaries.append({"setting": name, **_figures(same), "by_group": by_group})
    return summaries


def _figures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    scored = [row for row in rows if row["precision"] is not None]
    num_verified = sum(row["num_verified"] for row in rows)
    without = [row for row in rows if not row["claims"] and not row["num_failed_sentences"]]
    return {
        "macro": figure_over_seeds(scored, "precision"),
        "micro": sum(row["num_supported"] for row in rows) / num_verified if num_verified else None,
        "claims_per_text": sum(len(row["claims"]) for row in rows) / len(rows),
        "num_texts": len(rows),
        "num_without_claims": len(without),
        "num_unscored": len(rows) - len(scored) - len(without),
        "num_failed_sentences": sum(row["num_failed_sentences"] for row in rows),
        "num_failed_claims": sum(row["num_failed_claims"] for row in rows),
    }
