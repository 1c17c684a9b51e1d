"""Pairwise win rate: how often a judge prefers a setting's text to one of a pool of others.

Each pair is shown in both orders, as a judge may prefer the first text. Source: He et al.,
"Anchored Decoding", appendix "Other high-risk domains and utility metrics"; the size of the sample,
ties and orders, which it leaves open, are defined here.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ...fields import check_least
from ..recorded_texts import RecordedText, by_setting, grouped, rows_by_setting
from ..statistics import ratio_standard_error, share_interval
from .chat_client import ChatClient, Message, Sampling, messages_of, verdict_form, verdict_of

WIN_RATE_METRIC: Final = "win_rate_v3"
"""Version of the messages, of the draw of pairs, of ties and of the reading of answers."""
SAMPLING: Final = Sampling(temperature=0.0, max_tokens=512)
SEED: Final = 0
"""Seed of the draw of pairs."""
CONFIDENCE: Final = 0.95
"""Confidence level of the interval."""
_SCORES = {"win": 1.0, "tie": 0.5, "loss": 0.0}
_CHOICE = verdict_form("(A|B|TIE)")

_SYSTEM = """\
You are a fair judge of writing. You are shown the beginning of a text and two continuations of \
it, A and B. Decide which continuation serves a reader better: it goes on from the beginning, is \
to the point, informative, coherent and clearly written.

Neither length nor the order of the two counts. Do not prefer a continuation because you know or \
suspect where it is from. Write one or two sentences of reasons, then one line: [RESULT] A, \
[RESULT] B, or, if neither is better, [RESULT] TIE. Write nothing after that."""


@dataclass(frozen=True, kw_only=True)
class WinRateConfig:
    """The pairs of texts of a win rate: of the same prompt and seed, in both orders."""

    num_comparisons: int = 200
    """Pairs of texts that are compared for each setting, drawn by a seed, or all that there are."""
    pool: tuple[str, ...] = ()
    """Settings whose texts are competitors, each of all others; all by default."""

    def __post_init__(self) -> None:
        check_least(self, 1, "num_comparisons")


class Comparison(NamedTuple):
    """A text and its competitor: the same prompt and seed in another setting."""

    text: RecordedText
    competitor: RecordedText


def comparisons(texts: Sequence[RecordedText], config: WinRateConfig) -> list[Comparison]:
    """The pairs of each setting, drawn without replacement. The order of pairs depends on their
    prompt, seed and competitor alone, so that all settings are compared on the same ones as far as
    possible. texts: no two with one key. Raises: ValueError for a pool that names no setting, or no
    pair."""
    by_key = {(text.setting, text.id, text.seed): text for text in texts}
    settings = by_setting(texts)
    pool = config.pool or tuple(settings)
    if unknown := [name for name in pool if name not in settings]:
        known = ", ".join(settings)
        raise ValueError(f"there are no texts of {unknown[0]!r} for the pool; settings: {known}")
    drawn: list[Comparison] = []
    for same in settings.values():
        pairs = [
            Comparison(text, competitor)
            for text in same
            for name in pool
            if name != text.setting and (competitor := by_key.get((name, text.id, text.seed)))
        ]
        drawn += sorted(pairs, key=_rank)[: config.num_comparisons]
    if not drawn:
        raise ValueError("no two settings have a text of the same prompt and seed")
    return drawn


def comparison_messages(prompt: str, first: str, second: str) -> list[Message]:
    """The messages to a judge about one pair in one order."""
    parts = {"Beginning": prompt, "Continuation A": first, "Continuation B": second}
    content = "\n\n".join(f"### {title}\n{part}" for title, part in parts.items())
    return messages_of(_SYSTEM, content)


def choice(answer: str) -> str | None:
    """The verdict at the end of an answer: "A", "B" or "TIE"; None without one."""
    value = verdict_of(answer, _CHOICE)
    return None if value is None else value.upper()


def win_rate_rows(
    texts: Sequence[RecordedText], client: ChatClient, config: WinRateConfig
) -> list[dict[str, Any]]:
    """A row for each comparison: its key, competitor, the result in each order, and its score.
    score: mean over both orders of 1 for a win, 0.5 for a tie and 0 for a loss, so that a judge who
    contradicts itself gives 0.5; None if an order has no answer. Equal texts tie unasked. Raises:
    ValueError as `comparisons` does, RequestRefused."""

    def row(pair: Comparison) -> dict[str, Any]:
        results, problems = zip(
            *(_result(pair, client, is_first=is_first) for is_first in (True, False)), strict=True
        )
        scores = [_SCORES[result] for result in results if result is not None]
        return {
            **pair.text.key,
            "competitor": pair.competitor.setting,
            "results": list(results),
            "score": sum(scores) / 2 if len(scores) == 2 else None,
            "problem": next((problem for problem in problems if problem), None),
        }

    return client.each(row, comparisons(texts, config), "comparisons")


def win_rate_summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean score by setting, its interval over prompts, and counts of failures. interval: of
    the mean (`share_interval`), with the prompts as units, as the comparisons of one prompt are no
    independent draws."""
    return [{"setting": name, **_figures(same)} for name, same in rows_by_setting(rows).items()]


def _figures(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    scored = [row for row in rows if row["score"] is not None]
    results = [row["results"] for row in scored]
    return {
        "win_rate": sum(row["score"] for row in scored) / len(scored) if scored else None,
        "interval": _interval(scored) if scored else None,
        "num_compared": len(scored),
        "num_failed": len(rows) - len(scored),
        "num_inconsistent": sum(first != second for first, second in results),
    }


def _interval(rows: Sequence[dict[str, Any]]) -> list[float]:
    prompts = grouped(rows, lambda row: row["id"]).values()
    sums = [sum(row["score"] for row in same) for same in prompts]
    sizes = list(map(len, prompts))
    error = ratio_standard_error(sums, sizes)
    mean = sum(sums) / sum(sizes)
    return list(share_interval(mean, error, count=len(prompts), confidence=CONFIDENCE))


def _result(
    pair: Comparison, client: ChatClient, *, is_first: bool
) -> tuple[str | None, str | None]:
    """The result of the text as the first or the second one; and the problem if it has none."""
    if pair.text.text == pair.competitor.text:
        return "tie", None
    shown = [pair.text.text, pair.competitor.text]
    messages = comparison_messages(pair.text.prompt, *(shown if is_first else shown[::-1]))
    reading = client.ask(messages, SAMPLING, choice)
    if reading.value is None:
        return None, reading.problem
    if reading.value == "TIE":
        return "tie", None
    return ("win" if (reading.value == "A") == is_first else "loss"), None


def _rank(pair: Comparison) -> bytes:
    """A random rank, the same for a prompt, seed and competitor."""
    text = pair.competitor
    words = repr((SEED, text.id, text.seed, text.setting))
    return hashlib.sha256(words.encode()).digest()
