"""The command that makes one page of a whole run."""

from dataclasses import dataclass
from pathlib import Path

from anchored.durable_files import write_durably

from .analyse import RunOptions

PAGE = "report.html"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportConfig(RunOptions):
    """One page on a whole run: anchored report runs/quickstart

    Writes report.html, which loads nothing and runs no script: results, pictures, analyses, texts
    side by side with every token's spend, and what was not measured; its tables as report.md and
    report.tex. Nothing is generated: the same command makes the page anew.
    """

    output: Path | None = None
    """Folder for the three files; the run's own unless given. Earlier reports are replaced."""
    texts: int = 4
    """Prompts whose texts are shown, evenly among all."""

    def __post_init__(self) -> None:
        RunOptions.__post_init__(self)
        if self.texts < 0:
            raise ValueError(f"--texts must be at least 0, got {self.texts}")


def run(config: ReportConfig) -> int:
    """Write the page and its tables; returns the exit status."""
    from anchored.eval.analysis.run_report import run_report

    report = run_report(*config.analysed(), num_texts=config.texts)
    folder = config.output or config.run
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {
        PAGE: report.html(),
        "report.md": report.markdown(),
        "report.tex": report.latex(),
    }.items():
        write_durably(folder / name, text)
        print(folder / name)
    return 0
