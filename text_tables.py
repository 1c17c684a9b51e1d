"""Tables of text: as Markdown, LaTeX or HTML, or aligned for a terminal."""

import re
from collections.abc import Iterable, Sequence
from html import escape


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: bool) -> str:
    """Lines of a Markdown table; a "|" in a cell is escaped.

    numbers: all columns but the first are aligned to the right.
    """
    rule = [":--"] + ["--:"] * (len(head) - 1) if numbers else ["---"] * len(head)
    cells = ([str(cell).replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *cells))


_LATEX_SPECIAL = re.compile(r"[&%$#_{}\\^~]")
_LATEX_WORDS = {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
"""Characters that a backslash before them does not escape."""


def latex(head: Sequence[str], parts: Iterable[tuple[str, Iterable[Sequence[object]]]]) -> str:
    """A tabular of the package booktabs; special characters of cells are escaped.

    parts: (title, rows); a part without a title has no line for it. All columns but the first
    are aligned to the right.
    """
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule", _latex_line(head)]
    for title, rows in parts:
        lines.append(r"\midrule")
        if title:
            shown = _latex_cell(title)
            lines += [rf"\multicolumn{{{len(head)}}}{{l}}{{\textit{{{shown}}}}} \\", r"\midrule"]
        lines += map(_latex_line, rows)
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _latex_line(cells: Sequence[object]) -> str:
    return " & ".join(map(_latex_cell, cells)) + r" \\"


def _latex_cell(cell: object) -> str:
    return _LATEX_SPECIAL.sub(lambda match: _LATEX_WORDS.get(match[0], rf"\{match[0]}"), str(cell))


def html(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A <table>; cells are escaped."""
    lines = (_html_line(row, "td") for row in rows)
    table = "\n".join([f"<thead>{_html_line(head, 'th')}</thead>", "<tbody>", *lines, "</tbody>"])
    return f"<table>\n{table}\n</table>"


def _html_line(cells: Sequence[object], kind: str) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(str(cell))}</{kind}>' for cell in cells)}</tr>"


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their longest cell, the first to the left, the others to the right."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    first, *others = (
        "  ".join(
            [line[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        ).rstrip()
        for line in lines
    )
    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([first, rule, *others])
