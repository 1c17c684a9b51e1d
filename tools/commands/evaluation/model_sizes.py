"""How large models are, from their folder, the Hub, or a table of what is published."""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anchored.configs.config_file import from_table, read_config_file

PUBLISHED = Path(__file__).parents[3] / "configs" / "eval" / "models" / "published.toml"
BYTES_PER_WEIGHT = 2
"""bfloat16: of what is published, and of the keys and values of a cache."""
OFFLINE = "table, offline"
"""Where a size is from if the Hub did not answer, so that only the form of an id was checked."""
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_HUB_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """What a model costs: memory, and work a token."""

    weights: int
    """Numbers."""
    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    """Tokens."""
    active: int = 0
    """Weights that one token is multiplied with, of a mixture of experts; 0 for all of them."""

    @property
    def active_weights(self) -> int:
        """Weights that one token is multiplied with."""
        return self.active or self.weights

    @property
    def weight_bytes(self) -> int:
        """Memory of the model."""
        return BYTES_PER_WEIGHT * self.weights

    @property
    def cache_bytes_per_token(self) -> int:
        """Memory of a token's keys and values."""
        return 2 * BYTES_PER_WEIGHT * self.num_layers * self.num_kv_heads * self.head_dim


def model_size(name: str | Path) -> tuple[ModelSize, str]:
    """The size of a model, and where it is from.

    name: a Hugging Face folder, or the OWNER/NAME of a Hub id; whether the Hub has that is checked
    where it answers. Raises FileNotFoundError for neither and for an id that the Hub denies,
    ValueError for a folder without weights and for a size that nobody knows.
    """
    folder = Path(name)
    if folder.exists():
        return _folder_size(folder), "folder"
    if folder.is_absolute() or not _HUB_ID.fullmatch(str(name)):
        raise FileNotFoundError(f"no model folder and no OWNER/NAME of the Hub: {name}")
    published = _published(str(name))
    answer, number = _hub_weights(str(name))
    if answer == "no such model":
        raise FileNotFoundError(f"the Hub has no model {name}")
    if published is None:
        raise ValueError(f"the size of {name} is not known: add it to {PUBLISHED}")
    if number:
        return replace(published, weights=number), "Hub"
    return published, "table" if answer else OFFLINE


def _published(name: str) -> ModelSize | None:
    tables = read_config_file(PUBLISHED)
    return from_table(ModelSize, tables[name], f"{name}.") if name in tables else None


def _hub_weights(name: str) -> tuple[str, int]:
    """What the Hub says of an id, "" where it is silent, and the number of weights if known."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    # Of the HTTP library that this version is built on.
    client_error: Any = HfHubHTTPError.__bases__[0]
    try:
        info = HfApi().model_info(name, timeout=_HUB_SECONDS, expand=["safetensors"])
    except RepositoryNotFoundError:
        return "no such model", 0
    except (client_error, OSError):
        return "", 0
    return "found", info.safetensors.total if info.safetensors else 0


def _folder_size(folder: Path) -> ModelSize:
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"no model folder with a config.json at {folder}")
    config: Any = AutoConfig.from_pretrained(folder).get_text_config()
    heads = config.num_attention_heads
    return ModelSize(
        weights=_stored_weights(folder),
        num_layers=config.num_hidden_layers,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocab_size=config.vocab_size,
        context_length=getattr(config, "max_position_embeddings", 0),
    )


def _stored_weights(folder: Path) -> int:
    """Numbers in the safetensors files, by their headers."""
    from safetensors import safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} holds no safetensors")
    total = 0
    for file in files:
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118, not a mapping
                shape = tensors.get_slice(name).get_shape()
                total += math.prod(shape)
    return total
