"""Models and tokenizers from Hugging Face folders: safetensors only, no remote code."""

import logging
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.quantizers.auto import AutoQuantizationConfig
from transformers.utils.quantization_config import QuantizationConfigMixin

from ...errors import in_one_line
from ..streams.configs import suppressed_tokens
from .adapter import check_adapter, merged
from .folder import ModelFolder, read_json

DeviceMap = str | torch.device | Mapping[str, str | torch.device] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadOptions:
    """Options for loading one model of a pair; dtype and device are the pair's."""

    revision: str | None = None
    """Branch, tag or commit of a Hub id."""
    attn_implementation: str | None = None
    """Attention of transformers: "sdpa", "eager", ...; with others than these two rows decode in
    batches, or the model is refused if they are not exact, see `row_support`."""
    device_map: str | dict[str, Any] | None = None
    """Placement by accelerate in place of a device: "auto", or devices by the names of modules. For
    a risky model that no device holds; over several devices it decodes in whole batches."""

    def pinned(self, revision: str | None) -> "LoadOptions":
        """These options at the revision that a pair.json names; ValueError if they name one."""
        if self.revision is not None:
            raise ValueError(f"the pair.json names the revisions, got revision={self.revision!r}")
        return replace(self, revision=revision)

    def settings(self) -> dict[str, Any]:
        """The options that transformers takes with a folder."""
        options = {"attn_implementation": self.attn_implementation, "device_map": self.device_map}
        return {name: value for name, value in options.items() if value is not None}


DEFAULT_OPTIONS = LoadOptions()

GENERATION_CONFIG = "generation_config.json"
FLOATS = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}
"""Dtypes that models are decoded in; most machines have no products of float8."""
STORED_FLOATS = ("F16", "F32", "F64", "BF16")
"""The same as safetensors names them."""

OLD_BUFFERS = re.compile(r"\.(attn|attention)\.(masked_)?bias$|\.rotary_emb\.inv_freq$")
"""Names of causal masks and rotary frequencies, which old checkpoints hold for each layer."""


def load_config(folder: Path) -> PretrainedConfig:
    """The config alone; ValueError if it, or the generation_config, cannot be read or holds what
    no pair can follow."""
    with in_one_line(f"the config in {folder} cannot be read"):
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    quantization_method(config)
    if config.dtype is not None and config.dtype not in FLOATS.values():
        raise ValueError(
            f"the dtype in {folder} must be one of {', '.join(FLOATS)}, got {config.dtype}"
        )
    if (file := folder / GENERATION_CONFIG).is_file():  # transformers ignores one that is damaged
        suppressed_tokens(SimpleNamespace(**read_json(file)), str(file))
    return config


def checked_dtype(dtype: str | torch.dtype) -> str:
    """The name of a dtype that a caller gives, or "auto"; ValueError for one of no model."""
    name = str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype
    if name not in ("auto", *FLOATS):
        raise ValueError(f"dtype must be auto or one of {', '.join(FLOATS)}, got {dtype!r}")
    return name


def load_model(
    folder: ModelFolder,
    dtype: str,
    device: str | torch.device | None,
    *,
    options: LoadOptions = DEFAULT_OPTIONS,
    quantization: QuantizationConfigMixin | None = None,
) -> PreTrainedModel:
    """A model on one device or spread over several; an adapter is merged into it.

    device: None where the device_map of `options` says where the model goes.
    quantization: None for what the model's config says. Raises ValueError, in one line, for
    weights that cannot be read or that lack a tensor and for an adapter that cannot be merged, and
    ModuleNotFoundError for one where peft is not installed.
    """
    if folder.adapter is not None:
        is_quantized = bool(quantization or quantization_method(load_config(folder.base)))
        check_adapter(folder.adapter, is_quantized=is_quantized)
    settings = options.settings()
    if quantization is not None:
        settings["quantization_config"] = quantization
    if device is not None:
        # Read onto it: a model may not fit the host's memory, nor quantized weights be moved.
        settings["device_map"] = {"": torch.device(device)}
    model = _from_pretrained(folder.base, dtype, **settings)
    return model if folder.adapter is None else merged(model, folder.adapter)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer of a folder; ValueError if it has none, or one that lacks a part."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            read_json(folder / name)
    with in_one_line(f"the tokenizer in {folder} cannot be read"):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(f"the tokenizer in {folder} has no tokenizer.json")
    return tokenizer


def device_of(device: DeviceMap, name: str) -> str | torch.device:
    """The device of a model; for None CUDA where there is one."""
    if device is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not isinstance(device, Mapping):
        return device
    if name not in device:
        raise ValueError(f'device must name "safe" and "risky", got {sorted(device)}')
    return device[name]


def quantization_method(config: PretrainedConfig) -> str:
    """The quantization method of a model's weights ("gptq", ...), "" if there is none.

    Raises ValueError for a config that names no method.
    """
    of_each = (getattr(c, "quantization_config", None) for c in (config, config.get_text_config()))
    if (settings := next((one for one in of_each if one is not None), None)) is None:
        return ""
    plain = settings.to_dict() if isinstance(settings, QuantizationConfigMixin) else settings
    if not isinstance(plain, Mapping):
        raise ValueError(f"a quantization_config must be an object, got {plain!r}")
    method = plain.get("quant_method")
    if method is None and (plain.get("load_in_8bit") or plain.get("load_in_4bit")):
        return "bitsandbytes"  # its older checkpoints do not name it
    if method is None:
        raise ValueError(f"the quantization_config has no quant_method: {dict(plain)}")
    return str(getattr(method, "value", method))


def quantization_config(file: Path) -> QuantizationConfigMixin:
    """A config of transformers in a JSON file; ValueError, in one line, for anything else."""
    with in_one_line(f"the quantization in {file} cannot be read"):
        config: QuantizationConfigMixin = AutoQuantizationConfig.from_dict(read_json(file))
    return config


def _from_pretrained(folder: Path, dtype: str, **settings: Any) -> PreTrainedModel:
    loader: Any = AutoModelForCausalLM  # whose types know no output_loading_info
    source = logging.getLogger("transformers.modeling_utils")
    with in_one_line(f"the model in {folder} cannot be loaded"), ExitStack() as stack:
        source.addFilter(_is_no_table)
        stack.callback(source.removeFilter, _is_no_table)
        model, report = loader.from_pretrained(
            folder,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            **settings,
        )
    whole: PreTrainedModel = model
    _check_tensors(folder, report, {name for name, _ in whole.named_buffers()})
    if not quantization_method(whole.config):
        _check_stored_floats(folder, whole)
    return whole


def _is_no_table(record: logging.LogRecord) -> bool:
    """False for transformers' table of tensors that do not fit: the first is refused by name."""
    return "LOAD REPORT" not in record.getMessage()


def _check_tensors(folder: Path, report: Mapping[str, Any], buffers: set[str]) -> None:
    """report: of transformers, which leaves tied tensors out and fills missing ones at random.

    buffers: names of what the model computes by itself, and older versions stored.
    """
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"the weights in {folder} lack {missing[0]} ({len(missing)} in all)")
    if mismatched := sorted(report["mismatched_keys"]):
        name, stored, expected = mismatched[0]
        raise ValueError(
            f"the weights in {folder} do not fit the config: {name} is {tuple(stored)}, "
            f"not {tuple(expected)}"
        )
    more = set(report["unexpected_keys"]) - buffers
    if unexpected := sorted(name for name in more if not OLD_BUFFERS.search(name)):
        # Those of more layers than the config says, for one: another model than the stored one.
        raise ValueError(
            f"the weights in {folder} hold {unexpected[0]} ({len(unexpected)} in all), "
            "which the config has no use for"
        )


def _check_stored_floats(folder: Path, model: PreTrainedModel) -> None:
    """Raise ValueError for a parameter stored in anything but floats, which would be converted."""
    parameters = {name for name, _ in model.named_parameters()}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no mapping
                full_name = f"{model.base_model_prefix}.{name}"
                stored = file.get_slice(name).get_dtype()
                if stored not in STORED_FLOATS and not parameters.isdisjoint({name, full_name}):
                    raise ValueError(
                        f"the weights in {folder} hold {name} as {stored}, "
                        "but the model is not quantized"
                    )


def check_placement(device: DeviceMap, safe: LoadOptions, risky: LoadOptions) -> None:
    """Raise ValueError for places of the models that exclude each other."""
    if safe.device_map is not None:
        raise ValueError("a device_map is for the risky model: the safe one lies on one device")
    if risky.device_map is not None and isinstance(device, Mapping) and "risky" in device:
        raise ValueError(
            f"the risky model has a device_map, so it has no device, got {device['risky']!r}"
        )
