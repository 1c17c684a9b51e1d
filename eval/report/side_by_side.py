"""A self-contained HTML page that sets the generations of several settings side by side."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """One text; `pieces` joined are its characters, and `copied_spans` lie within them."""

    label: str
    pieces: Sequence[tuple[str, bool]]
    """Text of each token and whether the draw from the safe model was kept (accepted)."""
    copied_spans: Sequence[tuple[int, int]] = ()
    """Characters [start, end) that the reference has too."""
    spent: float | None = None
    """Nats spent; None where no budget applies (the risky model alone)."""
    bound: float | None = None
    """Nats that could be spent at most; None where no bound holds."""
    copy_probability: float | None = None
    """Largest probability, before it was drawn, that a text of this setting begins with the
    reference (`verbatim_bounds`); None where it is not known."""
    finish_reason: str = ""

    def __post_init__(self) -> None:
        length = sum(len(text) for text, _ in self.pieces)
        for start, end in self.copied_spans:
            if not 0 <= start < end <= length:
                raise ValueError(
                    f"copied span of {self.label!r} must lie in [0, {length}], got [{start}, {end}]"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class SideBySideRecord:
    """One prompt, the text that it was cut from, and what each setting made of it."""

    title: str
    prompt: str
    reference: str
    columns: Sequence[Generation]


def side_by_side_page(
    records: Sequence[SideBySideRecord], *, title: str = "Generations side by side"
) -> str:
    """The whole page as one string: no script, no external file, light and dark colours.

    Copied characters are highlighted; tokens that the risky model chose (accepted is False) are
    underlined, white space apart. Every text is escaped.
    Raises: ValueError if there are no records.
    """
    if not records:
        raise ValueError("a side-by-side page needs at least one record, got none")
    entries = "\n".join(
        f'<li><a href="#record-{i}">{escape(record.title)}</a></li>'
        for i, record in enumerate(records)
    )
    articles = "\n".join(_article(i, record) for i, record in enumerate(records))
    return _PAGE.format(
        title=escape(title), style=_STYLE, legend=_LEGEND, entries=entries, articles=articles
    )


def _article(index: int, record: SideBySideRecord) -> str:
    columns = "\n".join(_column(generation) for generation in record.columns)
    return (
        f'<article id="record-{index}">\n'
        f"<h2>{escape(record.title)}</h2>\n"
        f'<section class="prompt"><h3>Prompt</h3><p class="text">{escape(record.prompt)}</p>'
        "</section>\n"
        '<div class="columns" tabindex="0">\n'
        '<section class="reference"><h3>Reference</h3>'
        f'<p class="text">{escape(record.reference)}</p></section>\n'
        f"{columns}\n</div>\n</article>"
    )


def _column(generation: Generation) -> str:
    body = "".join(_marked(*run) for run in _runs(generation))
    return (
        f"<section><h3>{escape(generation.label)}</h3>"
        f'<p class="text">{body}</p><p class="facts">{escape(_facts(generation))}</p></section>'
    )


def _runs(generation: Generation) -> Iterator[tuple[str, bool, bool]]:
    """Longest stretches of one look: text, whether it is copied, whether the risky model chose."""
    copied = {i for start, end in generation.copied_spans for i in range(start, end)}
    characters = ((each, accepted) for text, accepted in generation.pieces for each in text)
    looks = (
        # An underlined space hangs on to the end of the line when the text wraps there.
        (character, place in copied, not accepted and not character.isspace())
        for place, (character, accepted) in enumerate(characters)
    )
    for (is_copied, is_risky), run in itertools.groupby(looks, key=lambda look: look[1:]):
        yield "".join(character for character, _, _ in run), is_copied, is_risky


def _marked(text: str, is_copied: bool, is_risky: bool) -> str:
    marked = escape(text)
    if is_risky:
        marked = f'<u title="the risky model chose this">{marked}</u>'
    return f"<mark>{marked}</mark>" if is_copied else marked


def _facts(generation: Generation) -> str:
    num_risky = sum(not accepted for _, accepted in generation.pieces)
    facts = [f"{len(generation.pieces)} tokens, {num_risky} by the risky model"]
    if generation.spent is not None:
        facts.append(f"spent {generation.spent:.2f} nats")
    has_bound = generation.bound is not None and math.isfinite(generation.bound)
    facts.append(f"bound {generation.bound:.2f} nats" if has_bound else "no bound")
    if generation.copy_probability is not None:
        facts.append(f"begins with the reference with p <= {generation.copy_probability:.2g}")
    if generation.finish_reason:
        facts.append(f"ended by {generation.finish_reason}")
    return "; ".join(facts)


_LEGEND: Final = (
    '<p class="legend"><mark>highlighted</mark>: also in the reference, in a run of words '
    "long enough to count as copied. <u>underlined</u>: the draw from the safe model was "
    "rejected and the risky model chose the token.</p>"
)

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --soft: #5f5f5f;
  --line: #d4d4d4; --panel: #f6f6f4; --mark: #ffe08a; --risky: #c2410c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e6; --paper: #161618; --soft: #a3a3a3;
  --line: #3a3a3d; --panel: #1f1f22; --mark: #6b5300; --risky: #ff9d6b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .5rem; }
h2 { font-size: 1.1rem; margin: 0 0 .5rem; }
h3 { font-size: .85rem; margin: 0 0 .4rem; color: var(--soft); }
p { margin: 0; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; font-family: Georgia, serif; }
.facts { margin-top: .6rem; font-size: .8rem; color: var(--soft); }
.legend { max-width: 60rem; color: var(--soft); }
.legend mark, .legend u { color: var(--ink); }
nav ul { columns: 16rem; margin: .5rem 0 0; padding-left: 1.2rem; }
article { margin-top: 2rem; padding-top: 1rem; border-top: 1px solid var(--line); }
section { padding: .7rem .9rem; border: 1px solid var(--line); border-radius: .4rem; }
.prompt { margin-bottom: .7rem; }
.columns { display: grid; grid-auto-flow: column; grid-auto-columns: minmax(17rem, 1fr);
  gap: .7rem; overflow-x: auto; padding-bottom: .4rem; }
.reference, .prompt { background: var(--panel); }
.reference { position: sticky; left: 0; }
a { color: inherit; }
mark { background: var(--mark); color: inherit; border-radius: .15rem; }
u { text-decoration: underline 2px var(--risky); text-underline-offset: 3px; }
"""

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
{legend}
<nav aria-label="Prompts"><ul>
{entries}
</ul></nav>
{articles}
</body>
</html>
"""
