"""Models and tokenizers from Hugging Face folders: safetensors only, no remote code."""

import json
import logging
import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.utils.quantization_config import QuantizationConfigMixin

logger = logging.getLogger(__name__)

DeviceMap = str | torch.device | Mapping[str, str | torch.device] | None
HUB_FILES = ["*.json", "*.safetensors", "tokenizer*", "LICENSE*"]


def model_folder(name: str | Path) -> Path:
    """A local folder, or the one that a Hub id is downloaded to; FileNotFoundError if neither."""
    folder = Path(name)
    if (folder / "config.json").is_file():
        return folder
    if folder.exists() or folder.is_absolute() or str(name).count("/") != 1:
        raise FileNotFoundError(f"no model folder with a config.json at {name}")
    return Path(snapshot_download(str(name), allow_patterns=HUB_FILES))


def load_config(folder: Path) -> PretrainedConfig:
    """The config alone; ValueError if it cannot be read."""
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, StrictDataclassError) as error:
        raise ValueError(f"the config in {folder} cannot be read: {_line(error)}") from error
    return config


def load_model(
    folder: Path,
    dtype: str,
    device: str | torch.device,
    quantization: QuantizationConfigMixin | None = None,
) -> PreTrainedModel:
    """A model on one device; quantised as given, or as its own config says.

    Raises ValueError, in one line, for weights that cannot be read or that lack a tensor.
    """
    if quantization is None and not quantization_method(load_config(folder)):
        model = _from_pretrained(folder, dtype)
        model.to(torch.device(device))  # type: ignore[arg-type]
        return model
    # Quantised weights are made on their device: most of them cannot be moved.
    settings = {} if quantization is None else {"quantization_config": quantization}
    return _from_pretrained(folder, dtype, device_map={"": device}, **settings)


def load_split_model(folder: Path, dtype: str, tp_size: int) -> PreTrainedModel:
    """A model split over the `tp_size` processes that torchrun started, one device each."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size != tp_size:
        raise ValueError(
            f"tp_size {tp_size} needs torchrun --nproc-per-node {tp_size}, "
            f"this process is one of {world_size}"
        )
    return _from_pretrained(folder, dtype, distributed_config=DistributedConfig(tp_size=tp_size))


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer of a folder; ValueError if it has none."""
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(f"the tokenizer in {folder} has no tokenizer.json")
    return tokenizer


def same_tokens(safe: PreTrainedTokenizerFast, risky: PreTrainedTokenizerFast) -> bool:
    """Whether both turn every text into the same ids, special tokens around it aside."""
    return _tokenization(safe) == _tokenization(risky)


def device_of(device: DeviceMap, name: str) -> str | torch.device:
    """Where a model goes: CUDA where there is one unless given."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if isinstance(device, Mapping):
        if name not in device:
            raise ValueError(f'device must name "safe" and "risky", got {sorted(device)}')
        return device[name]
    return device


def quantization_method(config: PretrainedConfig) -> str:
    """What a model's weights are quantised with ("gptq", ...), "" if they are not."""
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        return ""
    plain: dict[str, Any] = settings if isinstance(settings, dict) else settings.to_dict()
    method = plain["quant_method"]
    return str(getattr(method, "value", method))


def _from_pretrained(folder: Path, dtype: str, **settings: Any) -> PreTrainedModel:
    loader: Any = AutoModelForCausalLM  # whose types know no output_loading_info
    try:
        model, report = loader.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            **settings,
        )
    except (OSError, SafetensorError) as error:
        raise ValueError(f"the weights in {folder} cannot be read: {_line(error)}") from error
    _check_tensors(folder, report)
    whole: PreTrainedModel = model
    return whole


def _check_tensors(folder: Path, report: Mapping[str, Any]) -> None:
    """report: of transformers, which leaves tied tensors out and fills missing ones at random."""
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"the weights in {folder} lack {missing[0]} ({len(missing)} in all)")
    if mismatched := sorted(report["mismatched_keys"]):
        name, stored, expected = mismatched[0]
        raise ValueError(
            f"the weights in {folder} do not fit the config: {name} is {tuple(stored)}, "
            f"not {tuple(expected)}"
        )
    if unexpected := sorted(report["unexpected_keys"]):
        logger.warning(
            "the weights in %s hold %s (%d in all), which the model does not use",
            folder,
            unexpected[0],
            len(unexpected),
        )


def _line(error: Exception) -> str:
    """An error of transformers in one line: some take a paragraph."""
    return textwrap.shorten(str(error), 200)


def _tokenization(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    parts = {name: content[name] for name in ("normalizer", "pre_tokenizer", "model")}
    return {**parts, "vocab": tokenizer.get_vocab()}
