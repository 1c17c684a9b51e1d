"""Factual precision of long texts: claims, evidence for each, and a judge's verdict.

Claims are taken from a window that slides over the sentences, each claim is held against evidence
that was retrieved for it. Source: Min et al. 2023, "FActScore"; Song et al. 2024, "VeriScore". The
messages are this project's own words.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ..paid_requests import RequestFailed
from ..recorded_texts import RecordedText, figure_over_seeds, grouped, rows_by_setting
from ..retrieval.evidence import Evidence, Retriever
from .chat_client import Asked, ChatClient, Message, Sampling

FACTUALITY_METRIC: Final = "factuality_v1"
"""Version of the sentences, windows, messages and how answers are read."""
SAMPLING: Final = Sampling(temperature=0.0, max_tokens=1000)
NUM_BEFORE, NUM_AFTER = 3, 1
"""Sentences beside the one whose claims are taken."""
NUM_WITHOUT_LEAD: Final = 5
"""A longer text has its first sentence in every window: it names whom the text is about."""

_ABBREVIATION = re.compile(
    r"(?:\b(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|Sr|Jr|St|Gen|Col|Capt|Lt|Sgt|Rev|Hon|Gov|Sen|Rep|No|Vol|vs"
    r"|etc|Inc|Ltd|Co|Corp|approx|ca|c|b|d|e\.g|i\.e)|\b(?:[A-Za-z]\.)+[A-Za-z])\.$"
)
_END = re.compile(r"(?<=[.!?])[\"')\]\u201d\u2019]*\s+(?=[\"'(\[\u201c\u2018]?[A-Z0-9])")
_BULLET = re.compile(r"^\s*(?:[-*\u2022]|\d+[.)])\s+(.*\S)\s*$")
_NOTHING = re.compile(r"no verifiable claims?\b", re.IGNORECASE)
_VERDICT = re.compile(r"###\s*([^#]+?)\s*###")
_VERDICTS = {
    "supported": True,
    **dict.fromkeys(("unsupported", "not supported", "contradicted", "inconclusive"), False),
}

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


def sentences(text: str) -> list[str]:
    """The sentences of a text in order; a line break ends one, an abbreviation or initial none."""
    found: list[str] = []
    for line in text.splitlines():
        start = 0
        for end in _END.finditer(line):
            if not _ABBREVIATION.search(line[start : end.start()]):
                found.append(line[start : end.end()].strip())
                start = end.end()
        found.append(line[start:].strip())
    return [sentence for sentence in found if any(map(str.isalnum, sentence))]


def windows(text: str) -> list[str]:
    """For each sentence, itself between <SOS> and <EOS> with those beside it.

    Three before it and one after; of texts of more than five the first too, where it is not among
    them.
    """
    split = sentences(text)
    found = []
    for place, focus in enumerate(split):
        first = max(0, place - NUM_BEFORE)
        lead = split[:1] if len(split) > NUM_WITHOUT_LEAD and first > 0 else []
        before, after = split[first:place], split[place + 1 : place + 1 + NUM_AFTER]
        found.append(" ".join([*lead, *before, f"<SOS>{focus}<EOS>", *after]))
    return found


def extraction_messages(window: str) -> list[Message]:
    """What the judge is sent to get the claims of a sentence."""
    content = f"Passage: {window}\nFacts:"
    return [{"role": "system", "content": _EXTRACTION}, {"role": "user", "content": content}]


def verification_messages(claim: str, evidence: Sequence[Evidence]) -> list[Message]:
    """What the judge is sent to decide about a claim."""
    results = [
        f"Search result {number}\nTitle: {own.title}\nLink: {own.link}\nContent: {own.text}"
        for number, own in enumerate(evidence, 1)
    ]
    found = "\n\n".join(results) or "The search found nothing."
    content = f"Claim: {claim}\n\n{found}\n\nDecision:"
    return [{"role": "system", "content": _VERIFICATION}, {"role": "user", "content": content}]


def claims_in(answer: str) -> list[str] | None:
    """The claims of an answer, [] where it says that there are none; None for another answer."""
    bullets = [match[1] for line in answer.splitlines() if (match := _BULLET.match(line))]
    claims = [b for b in bullets if not _NOTHING.match(b) and not b.lower().startswith("note:")]
    return claims if claims or _NOTHING.search(answer) else None


def verdict(answer: str) -> bool | None:
    """Whether a claim is supported; None for an answer that does not say."""
    found = [own.strip(" .*").lower() for own in _VERDICT.findall(answer)]
    return _VERDICTS.get(found[-1]) if found else None


def factuality_rows(
    texts: Sequence[RecordedText], client: ChatClient, retriever: Retriever
) -> list[dict[str, Any]]:
    """A row for each text: its key and group, its claims with verdicts, and its precision.

    precision: supported claims in those that have a verdict; None where none has. Claims of a text
    are different strings. A sentence or claim without an answer is counted, and is no verdict.
    Raises: RequestRefused.
    """

    def claims_of(window: str) -> Asked[list[str]]:
        return client.ask(extraction_messages(window), SAMPLING, claims_in)

    def judged(claim: str) -> dict[str, Any]:
        return _judged(claim, client, retriever)

    focused = [windows(text.text) for text in texts]
    answers = iter(client.each(claims_of, [own for each in focused for own in each], "claims"))
    extracted = [[next(answers) for _ in own] for own in focused]
    # A dictionary keeps the order and drops what is said twice.
    unique = [
        list(dict.fromkeys(claim for own in found for claim in own.value or ()))
        for found in extracted
    ]
    verdicts = iter(client.each(judged, [own for each in unique for own in each], "verdicts"))
    return [
        _row(text, found, [next(verdicts) for _ in own])
        for text, found, own in zip(texts, extracted, unique, strict=True)
    ]


def _judged(claim: str, client: ChatClient, retriever: Retriever) -> dict[str, Any]:
    try:
        evidence = retriever.evidence(claim)
    except RequestFailed as error:
        return {"claim": claim, "supported": None, "problem": f"no evidence: {error}"}
    asked = client.ask(verification_messages(claim, evidence), SAMPLING, verdict)
    return {"claim": claim, "supported": asked.value, "problem": asked.problem}


def _row(
    text: RecordedText, extracted: list[Asked[list[str]]], claims: list[dict[str, Any]]
) -> dict[str, Any]:
    known = [own["supported"] for own in claims if own["supported"] is not None]
    return {
        **text.key,
        "group": text.group,
        "precision": sum(known) / len(known) if known else None,
        "num_supported": sum(known),
        "num_verified": len(known),
        "num_sentences": len(extracted),
        "num_failed_sentences": sum(own.value is None for own in extracted),
        "num_failed_claims": len(claims) - len(known),
        "problem": next((own.problem for own in extracted if own.problem), None),
        "claims": claims,
    }


def factuality_summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By setting, and within it by group: precision, claims, and what is missing.

    macro: mean over texts with a precision, then over seeds; micro: over the claims of all texts;
    claims_per_text: over all texts. num_without_claims: texts without a claim though no sentence
    failed, which have no precision; num_unscored: texts without one because of failures.
    """
    return [
        {"setting": name, **_figures(own), "by_group": _by_group(own)}
        for name, own in rows_by_setting(rows).items()
    ]


def _by_group(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """In alphabetical order; texts without a group are in none."""
    groups = grouped((row for row in rows if row["group"] is not None), lambda row: row["group"])
    return {name: _figures(groups[name]) for name in sorted(groups)}


def _figures(own: Sequence[dict[str, Any]]) -> dict[str, Any]:
    scored = [row for row in own if row["precision"] is not None]
    num_verified = sum(row["num_verified"] for row in own)
    without = [row for row in own if not row["claims"] and not row["num_failed_sentences"]]
    return {
        "macro": figure_over_seeds(scored, "precision"),
        "micro": sum(row["num_supported"] for row in own) / num_verified if num_verified else None,
        "claims_per_text": sum(len(row["claims"]) for row in own) / len(own),
        "num_texts": len(own),
        "num_without_claims": len(without),
        "num_unscored": len(own) - len(scored) - len(without),
        "num_failed_sentences": sum(row["num_failed_sentences"] for row in own),
        "num_failed_claims": sum(row["num_failed_claims"] for row in own),
    }
