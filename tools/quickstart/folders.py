"""Where a quickstart keeps what: one folder, every artefact under its own name."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Folders:
    """Paths under the quickstart's output folder."""

    root: Path

    @property
    def corpus(self) -> Path:
        return self.root / "corpus"

    @property
    def tasks(self) -> Path:
        return self.root / "tasks"

    @property
    def generations(self) -> Path:
        return self.root / "generations"

    @property
    def ledgers(self) -> Path:
        return self.root / "ledgers"

    @property
    def measurements(self) -> Path:
        return self.root / "measurements"

    def tokenizer(self, owner: str) -> Path:
        """owner: the model that has it for itself, "" for one that both models share."""
        return self.root / "tokenizer" / owner

    def shards(self, source: str, owner: str) -> Path:
        """Tokens of the owner's tokenizer."""
        return self.root / "shards" / owner / source

    def run(self, name: str) -> Path:
        return self.root / name

    def run_config(self, name: str) -> Path:
        return self.root / "configs" / f"{name}.toml"

    def model(self, name: str) -> Path:
        return self.root / "models" / name
