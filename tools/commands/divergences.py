"""The command that adds per-step divergences to a ledger."""

from dataclasses import dataclass
from pathlib import Path

import anchored

from .files import check_outputs
from .options import ModelOptions, is_first_process

PICTURE_SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True, kw_only=True, slots=True)
class DivergencesConfig(ModelOptions):
    """Per-step divergences: anchored divergences --safe A --risky B --ledger IN --output OUT

    Replays a ledger and writes it with KL(p_r || p_s), KL(p* || p_r) and the prompt's ratios.
    """

    ledger: Path
    """File that anchored generate or Ledger.save wrote."""
    output: Path
    """File for the longer ledger; anchored verify checks it like any other."""
    picture: Path | None = None
    """File for a picture (.png, .svg or .pdf) of all steps; needs matplotlib."""
    overwrite: bool = False
    """Replace files that exist."""

    def __post_init__(self) -> None:
        ModelOptions.__post_init__(self)
        if self.picture is not None and self.picture.suffix not in PICTURE_SUFFIXES:
            allowed = ", ".join(PICTURE_SUFFIXES)
            raise ValueError(f"--picture must end in one of {allowed}, got {self.picture}")


def run(config: DivergencesConfig) -> int:
    """Write the ledger and the picture; returns the exit status."""
    check_outputs(config.output, config.picture, overwrite=config.overwrite)
    recorded = anchored.Ledger.load(config.ledger)
    ledger = anchored.with_divergences(recorded, config.pair())
    if not is_first_process():
        return 0
    config.output.parent.mkdir(parents=True, exist_ok=True)
    ledger.save(config.output)
    if config.picture is not None:
        from anchored.eval.figures.curves import plot_divergences

        config.picture.parent.mkdir(parents=True, exist_ok=True)
        plot_divergences(ledger, config.picture)
    return 0
