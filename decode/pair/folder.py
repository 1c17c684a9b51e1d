"""The places of a model's files: a folder, a download of the Hub, an adapter and its base model.

Torch is imported where a model is at hand: command lines ask for locations before they load one.
"""

import hashlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from ...durable_files import file_sha256, write_durably

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer*", "LICENSE*"]
SECOND_COPY = "consolidated*"
"""Mistral's second copy of all weights, which some downloads hold and none needs."""
UNREAD_FILES = ["*/*", SECOND_COPY]
"""Not downloaded though they match; other formats and the authors' weights lie in subfolders."""
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"


def model_location(name: str | Path) -> Path | str:
    """The folder of a model or an adapter, with `~` expanded, or else an id on the Hub as a string.

    The Hub is not asked. Raises FileNotFoundError for what is neither, see `check_is_id`.
    """
    path = Path(name).expanduser()
    if any((path / config).is_file() for config in ("config.json", ADAPTER_CONFIG)):
        return path
    if path.exists():
        has_gguf = path.suffix == ".gguf" or any(path.glob("*.gguf"))
        reason = ": GGUF is not read here, convert it to safetensors" if has_gguf else ""
        raise FileNotFoundError(f"no model folder with a config.json at {name}{reason}")
    check_is_id(name)
    try:
        validate_repo_id(str(name))
    except HFValidationError:
        raise FileNotFoundError(
            f"there is no model folder with a config.json at {name}, nor is it the id of a model "
            "on the Hub"
        ) from None
    return str(name)


def check_is_id(name: str | Path) -> None:
    """Raise FileNotFoundError, in one line, for the path of a folder that is not here.

    A path begins with ., / or ~, or with a folder that is here: nobody means an id of the Hub by
    it, which would be sought for a minute where the Hub is out of reach.
    """
    text = str(name)
    first, slash, _ = text.partition("/")
    if text.startswith((".", "/", "~")):
        raise FileNotFoundError(f"there is no folder {text}")
    if slash and Path(first).is_dir():
        raise FileNotFoundError(
            f"there is no folder {text}, nor is it an id of the Hub, as {first} is a folder here"
        )


def not_on_hub(name: str | Path, what: str, error: Exception) -> FileNotFoundError:
    """An error, in one line, for a name that is no folder and of which the Hub gave nothing."""
    return FileNotFoundError(
        f"there is no folder {name} here, and no {what} on the Hub or in its cache: "
        f"{_hub_refusal(error)}"
    )


def _hub_refusal(error: Exception) -> str:
    if isinstance(error, HFValidationError):
        return "it can be no id there"
    if isinstance(error, GatedRepoError):
        return "its owner grants access by request: ask for it there, then `hf auth login`"
    if isinstance(error, RevisionNotFoundError):
        return "the Hub has no such revision"
    if isinstance(error, RepositoryNotFoundError):
        return "the Hub has no such id, or shows it only to those whom its owner lets in"
    cause = str(error.__cause__ or error).strip().partition("\n")[0]
    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        return f"the Hub is out of reach ({cause})"
    return cause


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
        """Folder of the tokenizer: the adapter's if it was saved there, else the base model's."""
        if self.adapter is not None and (self.adapter / "tokenizer.json").is_file():
            return self.adapter
        return self.base


def _folder(name: str | Path, revision: str | None) -> Path:
    """A folder as it is, or the one with a Hub id's files, as far as they are here where the Hub is
    out of reach."""
    folder = model_location(name)
    if isinstance(folder, Path):
        if revision is not None:
            raise ValueError(f"a revision is that of a Hub id, got {revision!r} for folder {name}")
        return folder
    patterns: Any = {"allow_patterns": HUB_FILES, "ignore_patterns": UNREAD_FILES}
    try:
        return Path(snapshot_download(folder, revision=revision, **patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        # Another program downloaded only some of the files: a license, say, is not needed.
        if snapshot := getattr(error, "snapshot_path", None):
            return Path(snapshot)
        at = "" if revision is None else f" at revision {revision}"
        raise not_on_hub(name, f"model {name}{at}", error) from error


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file of a model; ValueError, with its name, for anything else."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold a JSON object, got {content!r:.80}")
    return content


def _base_of(adapter: Path) -> tuple[str, str | None]:
    """(folder or Hub id of an adapter's base model, its revision)."""
    config = read_json(adapter / ADAPTER_CONFIG)
    if not (adapter / ADAPTER_WEIGHTS).is_file():
        raise ValueError(f"the adapter in {adapter} has no {ADAPTER_WEIGHTS}")
    if [path for path in adapter.glob("*.safetensors") if path.name != ADAPTER_WEIGHTS]:
        raise ValueError(f"{adapter} holds a whole model and an adapter: keep them in two folders")
    if not config.get("base_model_name_or_path"):
        raise ValueError(f"the {ADAPTER_CONFIG} in {adapter} has no base_model_name_or_path")
    base = config["base_model_name_or_path"]
    nested = adapter / base  # so that both may be moved together
    return str(nested) if nested.is_dir() else base, config.get("revision")


FINGERPRINTED = (
    *("*.safetensors", "config.json", "generation_config.json"),
    *("tokenizer*.json", "adapter_config.json"),
)


def fingerprint(folder: ModelFolder) -> str:
    """sha256 (hex) over the files of a model, and over those of its adapter where it has one."""
    parts = [folder_fingerprint(part) for part in folder.parts]
    return parts[0] if len(parts) == 1 else hashlib.sha256(":".join(parts).encode()).hexdigest()


def model_identity(name: str | Path) -> str:
    """A model's identity anywhere: the fingerprint of a folder, a Hub id as it is."""
    location = model_location(name)
    return location if isinstance(location, str) else fingerprint(ModelFolder.find(location))


def folder_fingerprint(folder: Path) -> str:
    """sha256 (hex) over the names and contents of a folder's weights, configs and tokenizer.

    Kept in `cache_folder()` by the folder's path, valid while names, sizes and times of the files
    are unchanged: nothing is written next to models, least of all into the Hub's cache.
    """
    matching = {path for pattern in FINGERPRINTED for path in folder.glob(pattern)}
    files = sorted(matching - set(folder.glob(SECOND_COPY)))
    stamp = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    source = str(folder.resolve())
    cache = cache_folder() / "fingerprints" / f"{hashlib.sha256(source.encode()).hexdigest()}.json"
    try:
        cached = read_json(cache)
        if cached["stamp"] == stamp:
            return str(cached["sha256"])
    except (OSError, ValueError, KeyError):
        pass  # there is none, or it is damaged
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}:{file_sha256(path)}\n".encode())
    content = {"folder": source, "stamp": stamp, "sha256": digest.hexdigest()}
    try:
        write_durably(cache, json.dumps(content))
    except OSError as error:
        logger.warning("fingerprint not cached, it is computed anew each time: %s", error)
    return digest.hexdigest()


def cache_folder() -> Path:
    """ANCHORED_CACHE, else `anchored` in XDG_CACHE_HOME or ~/.cache; it may be deleted any time."""
    if folder := os.environ.get("ANCHORED_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anchored"


def model_fingerprint(model: "PreTrainedModel") -> str:
    """sha256 (hex) of a model in memory: its config and every tensor of its state dict."""
    import torch

    digest = hashlib.sha256(model.config.to_json_string().encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
