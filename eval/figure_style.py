"""How all pictures look: colours, fonts, and files that do not change from run to run."""

from pathlib import Path
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito 2008: told apart with any colour vision.
GREEN, VERMILION, BLUE, PURPLE, ORANGE = "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#E69F00"
GREY: Final = "#5F5F5F"
# The same figure gives the same bytes: no time of writing, and no random ids in SVG (below).
_UNDATED: Final[dict[str, dict[str, None]]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
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


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this many inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would keep the figure alive and pick a windowing backend
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write it as .png, .svg or .pdf; ValueError for another suffix."""
    if path.suffix not in _UNDATED:
        raise ValueError(f"path must end in .png, .svg or .pdf, got {path}")
    figure.savefig(path, dpi=160, metadata=_UNDATED[path.suffix])
