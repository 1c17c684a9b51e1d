"""The style of all pictures: colors, fonts, legends, files that do not change."""

import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import NullFormatter

from ...durable_files import named_errors

# Okabe and Ito 2008: told apart with any color vision.
GREEN, VERMILION, BLUE, PURPLE, ORANGE = "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#E69F00"
SKY, BLACK = "#56B4E9", "#000000"
WINE, OLIVE = "#882255", "#999933"  # of Paul Tol's muted scheme
GREY: Final = "#5F5F5F"
COLORS: Final = (SKY, ORANGE, PURPLE, WINE, BLACK, GREY)
"""Colors of curves and bars that are no methods, in this order, without those of the roles."""
# The same figure gives the same bytes: no time of writing, and no random ids in SVG (below).
_UNDATED: Final[dict[str, dict[str, None]]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
_EDGE: Final = 0.01  # where title and caption begin, as a share of the width
_RC: Final[dict[Any, Any]] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.titlesize": 10,
    "legend.frameon": False,
    "svg.hashsalt": "anchored",
    "text.parse_math": False,  # names of settings and works are text: "$" stays what it is
}


@contextmanager
def new_figure(
    path: Path, width: float, height: float, *, title: str, caption: str = ""
) -> Iterator[SubFigure]:
    """A figure of this many inches between a title and a caption that says how to read it. Both are
    wrapped to the width. The subfigure is the part between them: legends "outside" its panels stay
    clear of both. The figure is written at the end, as .png, .svg or .pdf; ValueError for another
    suffix."""
    if path.suffix not in _UNDATED:
        raise ValueError(f"path must end in .png, .svg or .pdf, got {path}")
    title = textwrap.fill(title, int(11 * width))  # characters of an inch, bold
    # 8.5 points: 14 characters of an inch even where they are wide ones.
    caption = "\n".join(textwrap.fill(line, int(14 * width)) for line in caption.split("\n"))
    with rc_context(_RC):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)  # pyplot would keep the figure alive and pick a windowing backend
        figure.suptitle(title, x=_EDGE, ha="left", fontsize=11, fontweight="bold")
        figure.supxlabel(caption, x=_EDGE, ha="left", fontsize=8.5, color=GREY)
        yield figure.add_subfigure(figure.add_gridspec()[0])
        with named_errors(path):
            figure.savefig(path, dpi=160, metadata=_UNDATED[path.suffix])


def set_log_scale(axis: Axis) -> None:
    """Powers of ten as plain numbers: formulas are not read in any text (see _RC)."""
    axes = axis.axes
    (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


SUFFIXES: Final = (".png", ".svg")
"""Formats in which results are drawn."""
Pictures = dict[str, Callable[[Path], None]]
"""Functions by name that draw a picture into a file."""


def drawn(folder: Path, pictures: Mapping[str, Callable[[Path], None]]) -> list[Path]:
    """Draw each picture in all formats; returns the paths."""
    paths = []
    for name, draw in pictures.items():
        for suffix in SUFFIXES:
            path = folder / f"{name}{suffix}"
            draw(path)
            paths.append(path)
    return paths


def draw_legend(
    figure: SubFigure, panels: Iterable[Axes], names: Iterable[str], **options: Any
) -> None:
    """A legend of the lines and bars with these names as labels, each once, in their order.
    matplotlib finds the labels of a picture itself, but for those that begin with "_"."""
    handles: list[Any] = [each for axes in panels for each in (*axes.lines, *axes.containers)]
    drawn = {handle.get_label(): handle for handle in handles}
    shown = [name for name in names if name in drawn]
    figure.legend([drawn[name] for name in shown], shown, **options)


def panel_grid(figure: SubFigure, count: int, num_columns: int) -> list[Axes]:
    """A grid of `count` panels, row by row; the rest of the last row stays empty."""
    num_rows = math.ceil(count / num_columns)
    axes = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
    for spare in axes[count:]:
        spare.set_axis_off()
    return axes[:count]


Role = Literal["safe", "risky", "anchored", "baseline"]
"""The models alone, the method that sweeps k, and any other."""
Look = tuple[str, str]
"""A method's color and marker: the same in every picture of a run."""
ROLE_LOOKS: Final[Mapping[Role, Look]] = {
    "safe": (GREEN, "s"),
    "risky": (VERMILION, "D"),
    "anchored": (BLUE, "o"),
}
_COLORS: Final = (PURPLE, ORANGE, SKY, BLACK, WINE, OLIVE)
_MARKERS: Final = "^vPX"


def method_looks(roles: Mapping[str, Role]) -> dict[str, Look]:
    """The look of each method: that of its role, or another for each baseline, in their order.
    Colors come again, with another marker, if there are more baselines than colors."""
    looks = (
        (color, _MARKERS[(turn + index) % len(_MARKERS)])
        for turn in itertools.count()
        for index, color in enumerate(_COLORS)
    )
    return {method: ROLE_LOOKS.get(role) or next(looks) for method, role in roles.items()}
