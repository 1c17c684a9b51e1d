"""Tables of text: as Markdown, aligned for a terminal, or line by line as their rows come."""

from collections.abc import Iterable, Sequence


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: bool) -> str:
    """Lines of a Markdown table; a "|" in a cell is escaped.

    numbers: all columns but the first are aligned to the right.
    """
    rule = [":--"] + ["--:"] * (len(head) - 1) if numbers else ["---"] * len(head)
    cells = ([str(cell).replace("|", "\\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *cells))


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


def print_lines(rows: Iterable[Iterable[str]], width: int, *, name_width: int = 0) -> None:
    """Print rows as they come, the titles being the first.

    width: of every cell, aligned to the right; where name_width is given, the first one has that,
    aligned to the left.
    """
    for name, *others in rows:
        first = f"{name:<{name_width}}" if name_width else f"{name:>{width}}"
        print(first + "".join(f"{cell:>{width}}" for cell in others), flush=True)
