"""Pictures of recorded results: python -m anchored.tools.quickstart.pictures FOLDER"""

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from anchored.eval.experiments.results import draw_pictures


@dataclass(frozen=True, kw_only=True, slots=True)
class PicturesConfig:
    """Draws every picture anew, as .png and .svg, from the figures that lie in the folder."""

    folder: tyro.conf.Positional[Path]
    """A quickstart's or a sweep's output, or a copy of its results.json and, of a quickstart, of a
    ledger divergences.jsonl."""


def run(config: PicturesConfig) -> int:
    """Draw and print the files; returns the exit status."""
    print(*draw_pictures(config.folder), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(run(tyro.cli(PicturesConfig, description=__doc__)))
