"""Options of the quickstart; torch is not imported here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anchored.decode.pair.folder import model_location


@dataclass(frozen=True, kw_only=True, slots=True)
class QuickstartConfig:
    """Go from a real language model to a trade-off curve on one machine: anchored quickstart

    The safe model is SmolLM2-135M-Instruct as it comes; the risky one is the same model, which has
    learned 16 works and 40 facts by heart. The second part is the other half of the paper: it
    pretrains a safe model here, and pairs it with that risky model byte by byte.
    """

    model: Path | None = None
    """Another small model in its place, a folder or a Hub id; its risky twin is then trained
    here."""
    train: bool = False
    """Train the risky model here, in about ten minutes, in place of the adapter that the package
    has."""
    preset: Literal["default", "smoke"] = "default"
    """Amount of work: default takes about ten minutes on two cores; smoke takes the same path with
    little of everything, and shows nothing."""
    output: Path = Path("runs/quickstart")
    """Folder of everything that is made; a run that was interrupted goes on from it."""

    def __post_init__(self) -> None:
        if self.model is not None:
            model_location(self.model)  # FileNotFoundError for neither a folder nor a Hub id
