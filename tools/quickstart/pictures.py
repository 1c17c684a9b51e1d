"""Pictures of recorded results, drawn anew: python -m anchored.tools.quickstart.pictures FOLDER

The folder is a quickstart's or a sweep's output, or a copy of its results.json and, of a
quickstart, of a ledger divergences.jsonl. Every picture is written into it, as .png and .svg.
"""

from pathlib import Path

import tyro

from anchored.eval.experiments.results import draw_pictures


def run(folder: tyro.conf.Positional[Path]) -> None:
    """Draw the pictures and print the files."""
    print(*draw_pictures(folder), sep="\n")


if __name__ == "__main__":
    tyro.cli(run, description=__doc__)
