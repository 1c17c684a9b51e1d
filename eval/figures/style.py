"""How all pictures look: colours, fonts, and files that do not change from run to run."""

from pathlib import Path
from typing import Any, Final, Literal

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure

# Okabe and Ito 2008: told apart with any colour vision.
GREEN, VERMILION, BLUE, PURPLE, ORANGE = "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#E69F00"
GREY: Final = "#5F5F5F"
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
}


def figure_style() -> Any:
    """A context in which figures are drawn and saved."""
    return rc_context(_RC)


def new_figure(width: float, height: float, *, title: str, caption: str) -> SubFigure:
    """An empty figure of this many inches between a title and a caption that says how to read it.

    What is returned is the part between them: legends "outside" its panels stay clear of both.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would keep the figure alive and pick a windowing backend
    figure.suptitle(title, x=_EDGE, ha="left", fontsize=11, fontweight="bold")
    figure.supxlabel(caption, x=_EDGE, ha="left", fontsize=8.5, color=GREY)
    return figure.add_subfigure(figure.add_gridspec()[0])


def save_figure(figure: SubFigure, path: Path) -> None:
    """Write it with title and caption as .png, .svg or .pdf; ValueError for another suffix."""
    if path.suffix not in _UNDATED:
        raise ValueError(f"path must end in .png, .svg or .pdf, got {path}")
    whole = figure.get_figure(root=True)
    whole.savefig(path, dpi=160, metadata=_UNDATED[path.suffix])


Role = Literal["safe", "risky", "anchored", "baseline"]

# Each role has a marker of its own beside its colour.
ROLE_STYLE: Final = {
    "safe": (GREEN, "s", "safe model"),
    "risky": (VERMILION, "D", "risky model"),
    "anchored": (BLUE, "o", "Anchored Decoding"),
    "baseline": (PURPLE, "^", "other methods"),
}
