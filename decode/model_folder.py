"""Where a model's files lie: a folder, a download of the Hub, an adapter and its base model."""

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "LICENSE*"]
UNREAD_FILES = ["*/*", "consolidated*"]
"""Not downloaded though they match: subfolders, where other formats and the authors' own weights
lie, and Mistral's second copy of all weights."""
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model's config and weights, and the PEFT adapter that changes them, if there is one."""

    base: Path
    adapter: Path | None = None

    @classmethod
    def find(cls, name: str | Path, revision: str | None = None) -> "ModelFolder":
        """A local folder, or the one that a Hub id is downloaded to, each a model or an adapter.

        An adapter's base model is the one that its config names, at the revision named there.
        revision: branch, tag or commit of a Hub id. Raises FileNotFoundError where there is no such
        folder or id, and ValueError for the revision of a folder or an adapter that is not whole.
        """
        folder = _folder(name, revision)
        if not (folder / ADAPTER_CONFIG).is_file():
            return cls(folder)
        base, base_revision = _base_of(folder)
        return cls(_folder(base, base_revision), folder)

    @property
    def parts(self) -> list[Path]:
        """The folders whose files decide what the model is."""
        return [self.base] if self.adapter is None else [self.base, self.adapter]

    @property
    def tokenizer(self) -> Path:
        """Where the tokenizer lies: beside the adapter if it was saved there."""
        if self.adapter is not None and (self.adapter / "tokenizer.json").is_file():
            return self.adapter
        return self.base


def _folder(name: str | Path, revision: str | None) -> Path:
    folder = Path(name)
    if any((folder / config).is_file() for config in ("config.json", ADAPTER_CONFIG)):
        if revision is not None:
            raise ValueError(f"a revision is that of a Hub id, got {revision!r} for folder {name}")
        return folder
    if folder.exists() or folder.is_absolute() or str(name).count("/") != 1:
        raise FileNotFoundError(f"no model folder with a config.json at {name}")
    return _snapshot(str(name), revision)


def _snapshot(name: str, revision: str | None) -> Path:
    """A Hub id's files; ones that were downloaded before are enough where the Hub is out of reach.

    Weights that are missing among them are refused by name when the model is loaded.
    """
    try:
        return Path(
            snapshot_download(
                name, revision=revision, allow_patterns=HUB_FILES, ignore_patterns=UNREAD_FILES
            )
        )
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        # Another program downloaded only some of the files: a licence, say, is not needed.
        if known := getattr(error, "snapshot_path", None):
            return Path(known)
        at = "" if revision is None else f" at revision {revision}"
        reason = textwrap.shorten(str(error), 200)
        raise FileNotFoundError(
            f"no model {name}{at} on the Hub or in its cache: {reason}"
        ) from error


def _base_of(adapter: Path) -> tuple[str, str | None]:
    """(folder or Hub id of an adapter's base model, its revision)."""
    try:
        config = json.loads((adapter / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"the {ADAPTER_CONFIG} in {adapter} is not JSON: {error}") from error
    if not (adapter / ADAPTER_WEIGHTS).is_file():
        raise ValueError(f"the adapter in {adapter} has no {ADAPTER_WEIGHTS}")
    if [path for path in adapter.glob("*.safetensors") if path.name != ADAPTER_WEIGHTS]:
        raise ValueError(f"{adapter} holds a whole model and an adapter: keep them in two folders")
    if not config.get("base_model_name_or_path"):
        raise ValueError(f"the {ADAPTER_CONFIG} in {adapter} has no base_model_name_or_path")
    return config["base_model_name_or_path"], config.get("revision")
