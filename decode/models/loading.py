"""Models and tokenizers from Hugging Face folders: safetensors only, no remote code."""

import json
import logging
import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
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
from transformers.quantizers.auto import AutoQuantizationConfig
from transformers.utils.quantization_config import QuantizationConfigMixin

from .folder import ModelFolder, check_adapter, merged

logger = logging.getLogger(__name__)

DeviceMap = str | torch.device | Mapping[str, str | torch.device] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadOptions:
    """How one model of a pair is loaded, beside its dtype and device."""

    revision: str | None = None
    """Branch, tag or commit of a Hub id."""
    attn_implementation: str | None = None
    """Of transformers: "sdpa", "eager", ...; with others than these two rows decode in batches, or
    the model is refused if they are not exact, see `row_support`."""
    device_map: str | dict[str, Any] | None = None
    """Of accelerate, in place of a device: "auto", or devices by the names of modules. For a risky
    model that no device holds; over several devices it decodes in whole batches."""

    def settings(self) -> dict[str, Any]:
        """Those that transformers is given with a folder."""
        given = {"attn_implementation": self.attn_implementation, "device_map": self.device_map}
        return {name: value for name, value in given.items() if value is not None}


DEFAULT_OPTIONS = LoadOptions()


def load_config(folder: Path) -> PretrainedConfig:
    """The config alone; ValueError if it cannot be read."""
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, StrictDataclassError) as error:
        raise ValueError(f"the config in {folder} cannot be read: {_line(error)}") from error
    return config


def load_model(
    folder: ModelFolder,
    dtype: str,
    device: str | torch.device | None,
    *,
    options: LoadOptions = DEFAULT_OPTIONS,
    quantization: QuantizationConfigMixin | None = None,
) -> PreTrainedModel:
    """A model on one device; an adapter is merged into its weights.

    device: None where the device_map of `options` says where the model goes. quantization: unless
    given, as the model's own config says. Raises ValueError, in one line, for weights that cannot
    be read or that lack a tensor and for an adapter that cannot be merged, and ModuleNotFoundError
    for one where peft is not installed.
    """
    is_quantized = quantization is not None or bool(quantization_method(load_config(folder.base)))
    if folder.adapter is not None:
        check_adapter(folder.adapter, is_quantized=is_quantized)
    settings = options.settings()
    if quantization is not None:
        settings["quantization_config"] = quantization
    if device is not None:
        # Read onto it: a model may not fit the host's memory, nor quantised weights be moved.
        settings["device_map"] = {"": torch.device(device)}
    model = _from_pretrained(folder.base, dtype, **settings)
    return model if folder.adapter is None else merged(model, folder.adapter)


def load_split_model(
    folder: ModelFolder, dtype: str, tp_size: int, *, options: LoadOptions = DEFAULT_OPTIONS
) -> PreTrainedModel:
    """A model split over the `tp_size` processes that torchrun started, one device each."""
    if folder.adapter is not None:
        raise ValueError(f"an adapter ({folder.adapter}) cannot be merged into a split model")
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size != tp_size:
        raise ValueError(
            f"tp_size {tp_size} needs torchrun --nproc-per-node {tp_size}, "
            f"this process is one of {world_size}"
        )
    distributed = DistributedConfig(tp_size=tp_size)
    return _from_pretrained(
        folder.base, dtype, distributed_config=distributed, **options.settings()
    )


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer of a folder; ValueError if it has none, or one that lacks a part."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except KeyError as error:
        raise ValueError(f"the tokenizer in {folder} lacks {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(f"the tokenizer in {folder} has no tokenizer.json")
    return tokenizer


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


def quantization_config(given: Mapping[str, Any] | Path | str) -> QuantizationConfigMixin:
    """One of transformers' configs, from its settings or a JSON file of them.

    Raises ValueError, in one line, for a file that is not JSON and for settings that no method has.
    """
    settings = given if isinstance(given, Mapping) else _json_of(Path(given))
    if not isinstance(settings, Mapping) or "quant_method" not in settings:
        raise ValueError(f'a quantisation must be an object with "quant_method", got {given}')
    try:
        config: QuantizationConfigMixin = AutoQuantizationConfig.from_dict(dict(settings))
    except TypeError as error:  # a setting that the method does not have
        raise ValueError(f"{given}: {error}") from None
    return config


def _json_of(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from None


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
