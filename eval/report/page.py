"""A report: tables, pictures and texts as one HTML page, its tables as Markdown and LaTeX too."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from .html_page import html_page
from .side_by_side import SideBySideRecord, records_html
from .tables import Cell, Column, html_table, latex_table_of_parts, markdown_table

MEDIA_TYPES: Final = {".svg": "image/svg+xml", ".png": "image/png"}


@dataclass(frozen=True, slots=True)
class Picture:
    """The bytes of a picture file, and its suffix, .svg or .png."""

    content: bytes
    suffix: str

    def html(self, description: str) -> str:
        """As an <img> of a data: URI, in which no script of an SVG runs."""
        encoded = base64.b64encode(self.content).decode()
        source = f"data:{MEDIA_TYPES[self.suffix]};base64,{encoded}"
        return f'<figure><img alt="{escape(description)}" src="{source}"></figure>'


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One result: what it is, its table and its picture, where it has them."""

    title: str
    note: str = ""
    columns: Sequence[Column] = ()
    rows: Sequence[Mapping[str, Cell]] = ()
    picture: Picture | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All that a page shows."""

    title: str
    about: Mapping[str, str]
    """What was run and with what, by name."""
    sections: Sequence[Section]
    records: Sequence[SideBySideRecord] = ()
    texts_note: str = ""
    """How many of the texts are shown."""
    not_measured: Mapping[str, str]
    """By what is missing, why."""

    def html(self) -> str:
        """The self-contained page; every text is escaped."""
        parts = [self._contents(), *map(_html_section, enumerate(self.sections))]
        if self.records:
            note = f'<p class="legend">{escape(self.texts_note)}</p>'
            parts.append(f'<h2 id="texts">Texts</h2>\n{note}\n{records_html(self.records)}')
        missing = _definitions(self.not_measured) or "<p>Nothing is missing.</p>"
        parts.append(f'<h2 id="not-measured">Not measured</h2>\n{missing}')
        return html_page(self.title, "\n".join(parts))

    def _contents(self) -> str:
        titles = {f"section-{i}": own.title for i, own in enumerate(self.sections)}
        titles |= {"texts": "Texts"} if self.records else {}
        titles["not-measured"] = "Not measured"
        links = "\n".join(
            f'<li><a href="#{place}">{escape(title)}</a></li>' for place, title in titles.items()
        )
        nav = f'<nav aria-label="Contents"><ul>\n{links}\n</ul></nav>'
        return f"{_definitions(self.about)}\n{nav}"

    def markdown(self) -> str:
        """The tables with what they are of, and what was not measured."""
        parts = [f"# {self.title}"]
        for own in self.sections:
            parts += [f"## {own.title}", own.note] if own.rows else []
            parts += [markdown_table(own.rows, own.columns)] if own.rows else []
        parts.append("## Not measured")
        parts.append("\n".join(f"- {name}: {why}" for name, why in self.not_measured.items()))
        return "\n\n".join(part for part in parts if part) + "\n"

    def latex(self) -> str:
        """The tables as tabulars of booktabs, their titles in comments."""
        tables = [
            f"% {' '.join(own.title.split())}\n"
            + latex_table_of_parts([("", own.rows)], own.columns)
            for own in self.sections
            if own.rows
        ]
        return "\n\n".join(tables) + "\n"


def _html_section(numbered: tuple[int, Section]) -> str:
    number, own = numbered
    parts = [f'<h2 id="section-{number}">{escape(own.title)}</h2>']
    parts += [f'<p class="legend">{escape(own.note)}</p>'] if own.note else []
    parts += [html_table(own.rows, own.columns)] if own.rows else []
    parts += [own.picture.html(own.title)] if own.picture else []
    return "\n".join(parts)


def _definitions(entries: Mapping[str, str]) -> str:
    items = (f"<li>{escape(name)}: {escape(text)}</li>" for name, text in entries.items())
    return f"<ul>\n{chr(10).join(items)}\n</ul>" if entries else ""
