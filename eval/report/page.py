"""A report as one HTML page: tables, pictures, generations of several settings side by side; its
tables as JSON too."""

import base64
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from ...decode.ledger import LedgerStep
from ..figures.style import ROLE_LOOKS
from ..recorded_texts import ALONE, RecordedText
from ..statistics import json_value
from .tables import Column, Row, at_most, html_table


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One result: a note on how to read it, its table and its picture, if it has them."""

    title: str
    note: str = ""
    columns: Sequence[Column] = ()
    rows: Sequence[Row] = ()
    draw: Callable[[Path], object] | None = None
    """Draws the picture into an SVG file, or copies one that was drawn before."""


class Verdict(NamedTuple):
    """The copying of one setting, with other facts."""

    label: str
    role: str
    """Class of the page's style sheet, as `Generation.role`."""
    copied: float
    """Mean words of the longest span that a text has of its reference."""
    facts: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All that a page shows, in this order."""

    title: str
    headline: str
    """The verdict in a sentence; "" if nothing was measured."""
    verdicts: Sequence[Verdict]
    picture: Section | None
    """The picture next to the verdicts."""
    records: Sequence[SideBySideRecord]
    texts_note: str
    """The number of texts that are shown."""
    results: Sequence[Section]
    analyses: Sequence[Section]
    not_measured: Mapping[str, str]
    """Reasons by the name of a missing result."""
    about: Mapping[str, str]
    """Facts about the run by name."""

    @property
    def sections(self) -> list[Section]:
        """Results and analyses."""
        return [*self.results, *self.analyses]

    def html(self) -> str:
        """The self-contained page: no script, no external file, light and dark colors, pictures as
        data: URIs. Every text is escaped; models wrote some: even of an unescaped one, browsers
        would run no script, load nothing and send nothing (its Content-Security-Policy)."""
        parts = [first_html(self.records[0])] if self.records else []
        parts += [f'<p class="headline">{escape(self.headline)}</p>'] if self.headline else []
        cards = _verdicts_html(self.verdicts)
        picture = _picture_html(self.picture) if self.picture else ""
        parts += [f'<div class="verdict">{cards}{picture}</div>'] if cards or picture else []
        chapters = self._chapters()
        contents = _links_html("Contents", {name: title for name, title, _ in chapters})
        parts.append(f"<details><summary>Contents</summary>{contents}</details>")
        parts += [f'<h2 id="{name}">{escape(title)}</h2>\n{body}' for name, title, body in chapters]
        digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
        policy = f"{_POLICY}; style-src 'sha256-{digest}'"
        title, body = escape(self.title), "\n".join(parts)
        return _PAGE.format(title=title, policy=policy, style=STYLE, body=body)

    def _chapters(self) -> list[tuple[str, str, str]]:
        """Ids, titles and contents of what is below the verdict."""
        texts = f'<p class="legend">{escape(self.texts_note)}</p>\n{records_html(self.records)}'
        chapters = [("texts", "Texts", texts)] if self.records else []
        for number, section in enumerate(self.sections):
            note = f'<p class="legend">{escape(section.note)}</p>' if section.note else ""
            table = html_table(section.rows, section.columns) if section.rows else ""
            content = "\n".join(filter(None, [note, _picture_html(section), table]))
            chapters.append((f"section-{number}", section.title, content))
        missing = _definitions(self.not_measured) or "<p>Nothing is missing.</p>"
        chapters.append(("not-measured", "Not measured", missing))
        return [*chapters, ("about", "This run", _definitions(self.about))]

    def json(self) -> str:
        """The tables' figures, unrounded; null for what is infinite or not defined."""
        tables = [
            {"title": section.title, "note": section.note, "rows": list(section.rows)}
            for section in self.sections
            if section.rows
        ]
        record = {"title": self.title, "tables": tables, "not_measured": dict(self.not_measured)}
        return json.dumps(json_value(record), indent=1, allow_nan=False) + "\n"


def _verdicts_html(verdicts: Sequence[Verdict]) -> str:
    most = max((verdict.copied for verdict in verdicts), default=0.0) or 1.0
    cards = "\n".join(
        f'<section class="{verdict.role}"><h3>{escape(verdict.label)}</h3>'
        f"<p>{verdict.copied:.1f} words in a row from the reference, on average</p>"
        f'<progress max="{most:g}" value="{verdict.copied:g}"></progress>'
        f'<p class="facts">{escape(verdict.facts)}</p></section>'
        for verdict in verdicts
    )
    return f"<div>\n{cards}\n</div>" if verdicts else ""


def _picture_html(section: Section) -> str:
    """An <img> of a data: URI, in which no script of an SVG runs; "" without a picture."""
    if section.draw is None:
        return ""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "picture.svg"
        section.draw(path)
        encoded = base64.b64encode(path.read_bytes()).decode()
    source = f"data:image/svg+xml;base64,{encoded}"
    return f'<figure tabindex="0"><img alt="{escape(section.title)}" src="{source}"></figure>'


def _definitions(entries: Mapping[str, str]) -> str:
    items = (f"<li>{escape(name)}: {escape(text)}</li>" for name, text in entries.items())
    return f"<ul>\n{chr(10).join(items)}\n</ul>" if entries else ""


def first_html(record: SideBySideRecord) -> str:
    """HTML of a legend and the texts of the first record."""
    return f"{_LEGEND}\n{_article(0, record)}"


def records_html(records: Sequence[SideBySideRecord]) -> str:
    """HTML of the list of all records, and of the texts of all but the first, which `first_html`
    shows; every text is escaped. Copied characters are overlined; tokens that the risky model chose
    (accepted is False) are underlined, white space apart; a token whose figures are known is darker
    the more it spent."""
    titles = {f"record-{i}": record.title for i, record in enumerate(records)}
    articles = "\n".join(_article(i, record) for i, record in enumerate(records) if i > 0)
    return f"{_links_html('Prompts', titles)}\n{articles}"


def _links_html(label: str, titles: Mapping[str, str]) -> str:
    """A list of links to what has these ids."""
    links = (f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title in titles.items())
    return f'<nav aria-label="{label}"><ul>\n{chr(10).join(links)}\n</ul></nav>'


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
    html = ""
    for (is_copied, is_risky), run in itertools.groupby(looks, key=lambda look: look[1:]):
        text = escape("".join(character for character, _, _ in run))
        text = f"<u>{text}</u>" if is_risky else text
        html += f"<mark>{text}</mark>" if is_copied else text
    return html


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

_POLICY: Final = "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'"

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""

_ROLES: Final = "\n".join(
    f"section.{role} {{ border-top: 4px solid {color}; --bar: {color}; }}"
    for role, (color, _) in ROLE_LOOKS.items()
)
_CSS: Final = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
STYLE: Final = f"{_ROLES}\n{_CSS}{SPEND_CSS}\n"
