"""What identifies a model: a sha256 over its weights, config and tokenizer."""

import hashlib
import json
import logging
from pathlib import Path

import torch
from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

FINGERPRINTED = ("*.safetensors", "config.json", "generation_config.json", "tokenizer*.json")
CHUNK_BYTES = 1 << 24


def folder_fingerprint(folder: Path) -> str:
    """sha256 (hex) over the names and contents of a model folder's weights, config and tokenizer.

    Cached beside the folder as `NAME.fingerprint.json`, valid while sizes and times are unchanged.
    """
    files = sorted({path for pattern in FINGERPRINTED for path in folder.glob(pattern)})
    stamp = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]
    cache = folder.parent / f"{folder.name}.fingerprint.json"
    if cache.exists() and (known := json.loads(cache.read_text()))["stamp"] == stamp:
        return str(known["sha256"])
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}:{_file_sha256(path)}\n".encode())
    _write_cache(cache, {"stamp": stamp, "sha256": digest.hexdigest()})
    return digest.hexdigest()


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
        partial = cache.with_suffix(".partial")
        partial.write_text(json.dumps(content))
        partial.replace(cache)
    except OSError as error:
        logger.warning("fingerprint not cached, it is computed anew each time: %s", error)
