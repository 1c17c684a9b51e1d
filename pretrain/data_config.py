"""The [data] section of a run: which token shards are mixed, and in what proportion."""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Literal

from .shards import MANIFEST_NAME


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSource:
    """One source of the mixture."""

    name: str
    """Identifies the source in plans and logs; also keys the order in which it is read."""
    path: str
    """Folder of token shards."""
    weight: float
    """Positive; only the ratios between sources matter."""

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"weight of source {self.name} must be positive, got {self.weight}")

    @property
    def folder(self) -> Path:
        return Path(self.path)

    @property
    def has_shards(self) -> bool:
        """Whether the folder has a manifest; its shards are not looked at."""
        return (self.folder / MANIFEST_NAME).is_file()


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """What the model is trained on."""

    sources: tuple[DataSource, ...] = ()
    """At least one; all tokenised by the same tokenizer."""
    weight_unit: Literal["tokens", "documents"] = "tokens"
    """A weight is a share of tokens, or (as in lingua) the chance to draw one of its documents."""
    seed: int = 0
    """Keys the order of windows in every source and epoch."""
    max_epochs: float = inf
    """No source may be read more often, in the stages before this one included."""
    mask_documents: bool = False
    """Attention stays within a document; else, as in lingua, within a sequence of several."""
    verify_checksums: bool = True
    """Read every shard once before training and compare its sha256."""

    def __post_init__(self) -> None:
        if not self.max_epochs > 0:
            raise ValueError(f"data.max_epochs must be positive, got {self.max_epochs}")
        names = [source.name for source in self.sources]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"data.sources names must differ, got twice: {', '.join(duplicates)}")
