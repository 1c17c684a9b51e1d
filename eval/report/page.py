"""A report: tables, pictures and texts as one HTML page; its tables as JSON too."""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from ..figures.style import ROLE_LOOKS
from ..statistics import json_value
from .side_by_side import SPEND_CSS, SideBySideRecord, first_html, records_html
from .tables import Column, Row, html_table


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
    headline: str = ""
    """The verdict in a sentence; "" if nothing was measured."""
    verdicts: Sequence[Verdict] = ()
    picture: Section | None = None
    """The picture next to the verdicts."""
    records: Sequence[SideBySideRecord] = ()
    texts_note: str = ""
    """The number of texts that are shown."""
    results: Sequence[Section]
    analyses: Sequence[Section] = ()
    not_measured: Mapping[str, str]
    """Reasons by the name of a missing result."""
    about: Mapping[str, str]
    """Facts about the run by name."""

    @property
    def sections(self) -> list[Section]:
        """Results and analyses."""
        return [*self.results, *self.analyses]

    def html(self) -> str:
        """The self-contained page; every text is escaped."""
        parts = [first_html(self.records[0])] if self.records else []
        parts += [f'<p class="headline">{escape(self.headline)}</p>'] if self.headline else []
        cards = _verdicts_html(self.verdicts) if self.verdicts else ""
        picture = _picture_html(self.picture) if self.picture else ""
        parts += [f'<div class="verdict">{cards}{picture}</div>'] if cards or picture else []
        chapters = self._chapters()
        links = "\n".join(
            f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title, _ in chapters
        )
        parts.append(
            "<details><summary>Contents</summary>"
            f'<nav aria-label="Contents"><ul>\n{links}\n</ul></nav></details>'
        )
        parts += [f'<h2 id="{name}">{escape(title)}</h2>\n{body}' for name, title, body in chapters]
        return html_page(self.title, "\n".join(parts))

    def _chapters(self) -> list[tuple[str, str, str]]:
        """Ids, titles and contents of what is below the verdict."""
        texts = f'<p class="legend">{escape(self.texts_note)}</p>\n{records_html(self.records)}'
        chapters = [("texts", "Texts", texts)] if self.records else []
        for number, section in enumerate(self.sections):
            chapters.append((f"section-{number}", section.title, _section_html(section)))
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
    most = max(verdict.copied for verdict in verdicts) or 1.0
    cards = "\n".join(
        f'<section class="{verdict.role}"><h3>{escape(verdict.label)}</h3>'
        f"<p>{verdict.copied:.1f} words in a row from the reference, on average</p>"
        f'<progress max="{most:g}" value="{verdict.copied:g}"></progress>'
        f'<p class="facts">{escape(verdict.facts)}</p></section>'
        for verdict in verdicts
    )
    return f"<div>\n{cards}\n</div>"


def _section_html(section: Section) -> str:
    note = f'<p class="legend">{escape(section.note)}</p>' if section.note else ""
    table = html_table(section.rows, section.columns) if section.rows else ""
    return "\n".join(filter(None, [note, _picture_html(section), table]))


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


def html_page(title: str, body: str) -> str:
    """A whole page: no script, no external file, light and dark colors.

    title: any text. body: HTML whose texts are escaped; pictures are data: URIs. Models wrote the
    texts of the page: even of an unescaped one, browsers would run no script, load nothing and send
    nothing (its Content-Security-Policy).
    """
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"{_POLICY}; style-src 'sha256-{digest}'"
    return _PAGE.format(title=escape(title), policy=policy, style=STYLE, body=body)


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
