"""The reference of the public names, made from their docstrings: python -m anchored.tools.reference

Needs pdoc (the extra "docs"); `make docs` runs it.
"""

import sys
from pathlib import Path

import pdoc
from pdoc import render_helpers

import anchored

OUTPUT = Path("build/docs")
MODULES = (
    "anchored",
    "anchored.kernels.projection",
    "anchored.kernels.token_log_probs",
    "anchored.kernels.reference",
    "anchored.eval.copying.metrics",
    "anchored.eval.copying.ncr",
    "anchored.eval.quality.bits_per_byte",
)
"""Modules of the names that README and docs/ speak of."""


def run(output: Path) -> int:
    """Write one page a module and an index into `output`; returns the exit status."""
    for name in anchored.__all__:
        # pdoc reads what a module holds, and these names come at first use.
        setattr(anchored, name, getattr(anchored, name))
    others = ", ".join(f"`{module}`" for module in MODULES[1:])
    anchored.__doc__ = f"{anchored.__doc__}\n\nBeside the names of this page: {others}."
    # A line of a docstring explains one argument: it stays a line.
    render_helpers.markdown_extensions["breaks"] = {"on_newline": True, "on_backslash": True}
    pdoc.pdoc(*MODULES, output_directory=output)
    return 0


if __name__ == "__main__":
    sys.exit(run(OUTPUT))
