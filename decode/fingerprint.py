"""What identifies a model: a sha256 over its weights, config and tokenizer."""

import hashlib
import json
import logging
import os
from pathlib import Path

import torch
from transformers import PreTrainedModel

from .model_folder import ModelFolder

logger = logging.getLogger(__name__)

FINGERPRINTED = (
    "*.safetensors",
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "adapter_config.json",
)
UNREAD = "consolidated*"
"""Mistral's second copy of all weights, which some downloads hold and none needs."""
CHUNK_BYTES = 1 << 24


def fingerprint(folder: ModelFolder) -> str:
    """sha256 (hex) over the files of a model, and over those of its adapter where it has one."""
    parts = [folder_fingerprint(part) for part in folder.parts]
    return parts[0] if len(parts) == 1 else hashlib.sha256(":".join(parts).encode()).hexdigest()


def folder_fingerprint(folder: Path) -> str:
    """sha256 (hex) over the names and contents of a folder's weights, configs and tokenizer.

    Kept in `cache_folder()` by the folder's path, valid while names, sizes and times of the files
    are unchanged: nothing is written beside models, least of all into the Hub's own cache.
    """
    found = {path for pattern in FINGERPRINTED for path in folder.glob(pattern)}
    files = sorted(found - set(folder.glob(UNREAD)))
    stamp = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    source = str(folder.resolve())
    cache = cache_folder() / "fingerprints" / f"{hashlib.sha256(source.encode()).hexdigest()}.json"
    if cache.exists() and (known := json.loads(cache.read_text()))["stamp"] == stamp:
        return str(known["sha256"])
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}:{_file_sha256(path)}\n".encode())
    _write_cache(cache, {"folder": source, "stamp": stamp, "sha256": digest.hexdigest()})
    return digest.hexdigest()


def cache_folder() -> Path:
    """ANCHORED_CACHE, else `anchored` in XDG_CACHE_HOME or ~/.cache; it may be deleted any time."""
    if own := os.environ.get("ANCHORED_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anchored"


def model_fingerprint(model: PreTrainedModel) -> str:
    """sha256 (hex) of a model in memory: its config and every tensor of its state dict."""
    digest = hashlib.sha256(model.config.to_json_string().encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _write_cache(cache: Path, content: dict[str, object]) -> None:
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        partial = cache.with_suffix(f".{os.getpid()}")  # a split model's processes write at once
        partial.write_text(json.dumps(content))
        partial.replace(cache)
    except OSError as error:
        logger.warning("fingerprint not cached, it is computed anew each time: %s", error)
