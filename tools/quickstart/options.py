"""Options of the quickstart; torch is not imported here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anchored.decode.pair.folder import model_location
from anchored.decode.pair_options import ModelName

FOLDER = Path("runs/quickstart")


@dataclass(frozen=True, kw_only=True, slots=True)
class LookConfig:
    """See in half a minute what a pair does: anchored look

    A small real model goes on from the beginning of a story: alone, as a risky model that has
    learned the story by heart, and as a pair of both within a budget. The last line says what that
    text spent, and what is proved.
    """

    output: Path = FOLDER
    """Folder of the two models, which are made where they are not there yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuickstartConfig:
    """Go from a real language model to a trade-off curve on one machine: anchored quickstart

    The safe model is SmolLM2-135M-Instruct as it comes; the risky one is the same model, which has
    learned 16 works and 40 facts by heart. It begins with what `anchored look` prints, and ends
    with a table and a page.
    """

    bytes: bool = False
    """Go on with the other half of the paper: pretrain a safe model here, and pair it with that
    risky model byte by byte. This takes about four minutes more."""

    model: ModelName = None
    """Another small model in its place, a folder or a Hub id; its risky twin is then trained
    here."""
    train: bool = False
    """Train the risky model here, in about ten minutes, in place of the adapter that the package
    has."""
    preset: Literal["default", "smoke"] = "default"
    """Amount of work: default takes about ten minutes on two cores; smoke takes the same path with
    little of everything, and shows nothing."""
    output: Path = FOLDER
    """Folder of everything that is made; a run that was interrupted goes on from it."""

    def __post_init__(self) -> None:
        if self.model is not None:
            model_location(self.model)  # FileNotFoundError for neither a folder nor a Hub id
