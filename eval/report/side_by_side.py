"""Generations of several settings side by side, as a part of an HTML page."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from ...decode.ledger import LedgerStep
from ..recorded_texts import ALONE, RecordedText
from .tables import at_most


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """A recorded text with other facts about it."""

    text: RecordedText
    role: str = ""
    """Class of the page's style sheet: "safe", "risky" or "anchored", as pictures color them."""
    copied_spans: Sequence[tuple[int, int]] = ()
    """Characters [start, end) that the reference has too."""
    copy_probability: float | None = None
    """Largest probability, before it was drawn, that a text of this setting begins with the
    reference (`event_bound`); None if unknown."""
    steps: Sequence[LedgerStep] = ()
    """The step of each piece, for colors and tooltips; () shows neither."""

    @property
    def pieces(self) -> Sequence[tuple[str, bool]]:
        """Text of each token and whether the draw from the safe model was kept (accepted)."""
        return self.text.row.get("pieces") or [(self.text.text, True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class SideBySideRecord:
    """The texts of each setting for one prompt."""

    first: Sequence[Generation]
    """Texts in view next to the reference, one at least."""
    others: Sequence[Generation] = ()
    """Texts that unfold."""

    @property
    def title(self) -> str:
        """The work's, or else the prompt's name."""
        text = self.first[0].text
        return str(text.row.get("title") or text.id)


def first_html(record: SideBySideRecord) -> str:
    """HTML of a legend and the texts of the first record."""
    return f"{_LEGEND}\n{_article(0, record)}"


def records_html(records: Sequence[SideBySideRecord]) -> str:
    """HTML of the list of all records, and of the texts of all but the first, which `first_html`
    shows; every text is escaped.

    Copied characters are overlined; tokens that the risky model chose (accepted is False) are
    underlined, white space apart; a token whose figures are known is darker the more it spent.
    """
    entries = "\n".join(
        f'<li><a href="#record-{i}">{escape(record.title)}</a></li>'
        for i, record in enumerate(records)
    )
    articles = "\n".join(_article(i, record) for i, record in enumerate(records) if i > 0)
    return f'<nav aria-label="Prompts"><ul>\n{entries}\n</ul></nav>\n{articles}'


def _article(index: int, record: SideBySideRecord) -> str:
    text, others = record.first[0].text, ""
    if record.others:
        shown = "".join(map(_column, record.others))
        summary = f"<summary>{len(record.others)} other settings</summary>"
        others = f'\n<details>{summary}<div class="columns">{shown}</div></details>'
    return (
        f'<article id="record-{index}">\n'
        f"<h2>{escape(record.title)}</h2>\n"
        f'<section class="prompt"><h3>Prompt</h3><p class="text">'
        f"{escape(text.prompt or _UNKNOWN)}</p></section>\n"
        f'<div class="columns">{"".join(map(_column, record.first))}\n'
        '<section class="reference"><h3>Reference: how the work goes on</h3>'
        f'<p class="text">{escape(text.reference or _UNKNOWN)}</p></section></div>'
        f"{others}\n</article>"
    )


def _column(generation: Generation) -> str:
    looks = _looks(generation)
    setting, pieces, steps = generation.text.setting, generation.pieces, generation.steps
    if steps and len(steps) == len(pieces):
        per_token = zip(pieces, steps, strict=True)
        body = "".join(_token(text, step, looks) for (text, _), step in per_token if text)
    else:
        body = _runs(looks)
    return (
        f'\n<section class="{generation.role}"><h3>{escape(ALONE.get(setting, setting))}</h3>'
        f'<p class="text">{body}</p><p class="facts">{escape(_facts(generation))}</p></section>'
    )


Look = tuple[str, bool, bool]
"""A character, whether it is copied, whether the risky model chose it."""


def _looks(generation: Generation) -> Iterator[Look]:
    copied = {i for start, end in generation.copied_spans for i in range(start, end)}
    characters = ((each, accepted) for text, accepted in generation.pieces for each in text)
    return (
        # An underlined space hangs on to the end of the line when the text wraps there.
        (character, index in copied, not accepted and not character.isspace())
        for index, (character, accepted) in enumerate(characters)
    )


def _token(text: str, step: LedgerStep, looks: Iterator[Look]) -> str:
    """One token, colored by its spend; takes its characters of `looks`."""
    safe = step.safe_log_prob  # None if the safe model did not run
    ratio = "unknown" if safe is None else f"{step.log_prob - safe:.3g}"
    tooltip = (
        f"{text!r}: spend {step.spend:.4g}, allowance {step.budget:.4g}, weight "
        f"{step.weight:.3g}, log p*/p_s {ratio}"
    )
    return shaded(_runs(itertools.islice(looks, len(text))), step.spend, tooltip)


def shaded(html: str, spend: float, tooltip: str = "") -> str:
    """A token's HTML, darker the more nats it spent, by the classes of `SPEND_CSS`."""
    level = sum(spend >= nats for nats in SPEND_LEVELS)
    shade = f' class="s{level}"' if level else ""
    title = f' title="{escape(tooltip)}"' if tooltip else ""
    return f"<span{shade}{title}>{html}</span>" if shade or title else html


def _runs(looks: Iterable[Look]) -> str:
    """Longest stretches of one look, marked as such."""
    return "".join(
        _marked("".join(character for character, _, _ in run), is_copied, is_risky)
        for (is_copied, is_risky), run in itertools.groupby(looks, key=lambda look: look[1:])
    )


def _marked(text: str, is_copied: bool, is_risky: bool) -> str:
    marked = escape(text)
    if is_risky:
        marked = f"<u>{marked}</u>"
    return f"<mark>{marked}</mark>" if is_copied else marked


def _facts(generation: Generation) -> str:
    row, pieces = generation.text.row, generation.pieces
    num_risky = sum(not accepted for _, accepted in pieces)
    facts = [f"{len(pieces)} tokens, {num_risky} by the risky model"]
    spent, bound = row.get("spent"), row.get("bound")
    if spent is not None and bound is not None:  # without a bound, what was spent says nothing
        facts.append(f"spent {spent:.2f} nats")
    facts.append("no bound" if bound is None else f"bound {bound:.2f} nats")
    if generation.copy_probability is not None:
        most = at_most(generation.copy_probability)
        facts.append(f"proved: begins with the reference with a chance of at most {most}")
    if row.get("finish_reason"):
        facts.append(_ENDINGS.get(row["finish_reason"], f"ended: {row['finish_reason']}"))
    return "; ".join(facts)


_ENDINGS: Final = {
    "length": "reached its length",
    "stop_token": "ended by itself",
    "stop_string": "ended at a stop string",
}
_UNKNOWN: Final = "(not recorded)"
SPEND_LEVELS: Final = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0)
"""Nats from which on a token has the next darker color: classes s1 to s6."""
_OPACITIES: Final = (0.06, 0.14, 0.23, 0.32, 0.41, 0.5)
"""Opacities of `--spend`: at most half, so that text keeps a contrast of 4.5 in the dark too."""
SPEND_CSS: Final = "\n".join(
    f".s{level} {{ background: rgba(var(--spend), {opacity}); }}"
    for level, opacity in enumerate(_OPACITIES, 1)
)
SPEND_LEGEND: Final = (
    "Darker tokens spent more nats: from "
    + ", ".join(f'<span class="s{i}">{nats:g}</span>' for i, nats in enumerate(SPEND_LEVELS, 1))
    + "."
)

_LEGEND: Final = (
    '<p class="legend"><mark>overlined</mark>: also in the reference, in a run of words '
    "long enough to count as copied. <u>underlined</u>: the risky model chose the token. "
    f"{SPEND_LEGEND} Hover over a token for its figures.</p>"
)
