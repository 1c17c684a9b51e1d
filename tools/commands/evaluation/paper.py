"""The command that holds a rerun of one of the paper's pairs against what the paper prints."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from anchored.inputs import check_input

from ..option_types import POSITIONAL


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperConfig:
    """Hold a rerun against the paper's tables: anchored paper PAIR --books RUN1 --bios RUN2

    Prints the 26 settings of the pair's full table and the table of high protection. Each cell has
    what the rerun found, what is printed, and by how many standard deviations they differ. Reads
    what anchored sweep and anchored evaluate recorded; nothing is generated.
    """

    pair: Annotated[str, POSITIONAL]
    """Pair of the paper, by the name of its file in configs/eval: llama3.1-70b+tinycomma-1.8b"""
    books: Path
    """Folder of the sweep over books, with their fluency; NCR is that of its copying."""
    bios: Path
    """Folder of the sweep over biographies, with their factuality."""
    output: Path = Path("runs/paper")
    """Folder for paper.md, .tex and .json, and the picture of both trade-offs."""

    def __post_init__(self) -> None:
        from anchored.eval.analysis.paper_table import PAIRS

        if self.pair not in PAIRS:
            raise ValueError(f"the paper's pairs are {', '.join(PAIRS)}, got {self.pair!r}")
        check_input(self.books, "folder")
        check_input(self.bios, "folder")


def run(config: PaperConfig) -> int:
    """Print and write the tables; returns the exit status."""
    from anchored.eval.analysis.paper_table import write_paper_table
    from anchored.eval.analysis.recorded_run import RecordedRun

    books, bios = RecordedRun(config.books), RecordedRun(config.bios)
    print(write_paper_table(config.pair, books, bios, config.output))
    print(config.output / "paper.md")
    return 0
