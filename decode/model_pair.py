"""A safe and a risky language model that share one vocabulary."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from .fingerprint import folder_fingerprint, model_fingerprint
from .row_attention import RowAttention
from .row_check import checked_row_attention

DeviceMap = str | torch.device | Mapping[str, str | torch.device] | None
HUB_FILES = ["*.json", "*.safetensors", "tokenizer*", "LICENSE*"]


@dataclass(frozen=True, slots=True)
class ModelPair:
    """Two causal models over the same tokens; construction fails when they do not fit together.

    Both may carry embeddings padded beyond the tokenizer: the padding is never predicted.
    """

    safe: PreTrainedModel
    risky: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    fingerprints: dict[str, str] = field(default_factory=dict)
    """sha256 by "safe" and "risky"; computed from the tensors in memory when not given."""
    row_attention: dict[str, RowAttention | None] = field(default_factory=dict, init=False)
    """By "safe" and "risky": how rows of different lengths share a forward, None if they cannot."""

    def __post_init__(self) -> None:
        for name, model in self.models.items():
            rows = model.config.get_text_config().vocab_size
            if rows < self.vocab_size:
                raise ValueError(
                    f"the {name} model predicts {rows} tokens, the tokenizer has "
                    f"{self.vocab_size}: they do not belong together"
                )
            if name not in self.fingerprints:
                self.fingerprints[name] = model_fingerprint(model)
            model.train(False)
            self.row_attention[name] = checked_row_attention(model, name)

    @classmethod
    def from_pretrained(
        cls, safe: str | Path, risky: str | Path, *, dtype: str = "auto", device: DeviceMap = None
    ) -> "ModelPair":
        """Load both models from Hugging Face folders or Hub ids (safetensors only, no remote code).

        dtype: "auto" (as stored) or a torch dtype name. device: one for both, or a mapping with
        "safe" and "risky"; by default CUDA where there is one. Raises FileNotFoundError for a
        missing folder and ValueError for tokenizers that differ.
        """
        folders = {"safe": _model_folder(safe), "risky": _model_folder(risky)}
        tokenizers = {name: _load_tokenizer(folder) for name, folder in folders.items()}
        _check_same_tokens(tokenizers["safe"], tokenizers["risky"])
        models = {
            name: _load_model(folder, dtype).to(torch.device(_device_of(device, name)))  # type: ignore[arg-type]
            for name, folder in folders.items()
        }
        prints = {name: folder_fingerprint(folder) for name, folder in folders.items()}
        return cls(models["safe"], models["risky"], tokenizers["safe"], prints)

    @property
    def models(self) -> dict[str, PreTrainedModel]:
        """Both models by name, safe first."""
        return {"safe": self.safe, "risky": self.risky}

    @property
    def vocab_size(self) -> int:
        """Number of tokens that can be predicted: those of the tokenizer."""
        return len(self.tokenizer)

    @property
    def context_length(self) -> int | None:
        """Longest sequence that both models accept, in tokens; None when neither states one."""
        configs = [model.config.get_text_config() for model in self.models.values()]
        lengths = [getattr(config, "max_position_embeddings", None) for config in configs]
        return min((length for length in lengths if length), default=None)

    @property
    def stop_token_ids(self) -> list[int]:
        """Every token at which either model or the tokenizer ends a text, ascending."""
        stops: set[int] = set()
        for model in self.models.values():
            stops |= _ids(model.generation_config.eos_token_id) | _ids(model.config.eos_token_id)
        stops |= _ids(self.tokenizer.eos_token_id)
        return sorted(token for token in stops if token < self.vocab_size)

    @property
    def dtype(self) -> torch.dtype:
        """The coarser of both models' dtypes: it decides how closely a replay can agree."""
        dtypes = [model.dtype for model in self.models.values()]
        return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)

    def encode(self, prompt: str | list[int]) -> list[int]:
        """Token ids of a prompt with the special tokens that the tokenizer puts before a text."""
        if isinstance(prompt, str) and prompt:
            token_ids = list(self.tokenizer(prompt)["input_ids"])
        else:
            token_ids = list(prompt)
        if not token_ids:
            raise ValueError("the prompt is empty: give at least one character or one token")
        _check_token_ids(token_ids, self.vocab_size)
        return token_ids

    def encode_continuation(self, text: str | list[int]) -> list[int]:
        """Token ids of a text that follows a prompt: no special tokens are added."""
        if isinstance(text, str):
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        _check_token_ids(text, self.vocab_size)
        return list(text)

    def predictions(self, logits: Tensor) -> Tensor:
        """Logits (..., vocab_size) without the columns of padded embeddings."""
        return logits[..., : self.vocab_size]


def _model_folder(name: str | Path) -> Path:
    folder = Path(name)
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() or folder.is_absolute() or str(name).count("/") != 1:
        raise FileNotFoundError(f"no model folder with a config.json at {name}")
    return Path(snapshot_download(str(name), allow_patterns=HUB_FILES))


def _load_model(folder: Path, dtype: str) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, use_safetensors=True, trust_remote_code=False
    )
    return model


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(f"the tokenizer in {folder} has no tokenizer.json")
    return tokenizer


def _check_same_tokens(safe: PreTrainedTokenizerFast, risky: PreTrainedTokenizerFast) -> None:
    if _tokenization(safe) != _tokenization(risky):
        raise ValueError(
            "the models have different tokenizers "
            f"({len(safe)} and {len(risky)} tokens): token level needs equal ones, "
            'such a pair needs level="byte"'
        )


def _tokenization(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """All that decides which ids a text becomes, special tokens around it aside."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    parts = {name: content[name] for name in ("normalizer", "pre_tokenizer", "model")}
    return {**parts, "vocab": tokenizer.get_vocab()}


def _device_of(device: DeviceMap, name: str) -> str | torch.device:
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if isinstance(device, Mapping):
        if name not in device:
            raise ValueError(f'device must name "safe" and "risky", got {sorted(device)}')
        return device[name]
    return device


def _ids(token_ids: int | list[int] | None) -> set[int]:
    if token_ids is None:
        return set()
    return {token_ids} if isinstance(token_ids, int) else set(token_ids)


def _check_token_ids(token_ids: list[int], vocab_size: int) -> None:
    wrong = [token for token in token_ids if not 0 <= token < vocab_size]
    if wrong:
        raise ValueError(f"token ids must be in [0, {vocab_size}), got {wrong[0]}")
