"""Models and tokenizers from Hugging Face folders: safetensors only, no remote code."""

import logging
import math
from collections.abc import Iterator, Mapping
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
from ..settings import HINTS
from ..streams.configs import suppressed_tokens
from .adapter import check_adapter, merged
from .folder import ModelFolder, read_json

logger = logging.getLogger(__name__)

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

LARGEST_HIDDEN = -1e4
"""The number that GPT-2 and GPT-J added to hide a score; GPT-Neo and GPT-NeoX took -1e9."""


def load_config(folder: Path) -> PretrainedConfig:
    """The config alone, once its files are looked at; ValueError if one cannot be read or holds a
    value that no model has, which transformers ignores or stumbles over later."""
    names = (GENERATION_CONFIG, "model.safetensors.index.json")
    contents = {name: read_json(folder / name) for name in names if (folder / name).is_file()}
    with in_one_line(f"the config in {folder} cannot be read"):
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    quantization_method(config)
    text = config.get_text_config()
    if config.dtype is not None and config.dtype not in FLOATS.values():
        raise ValueError(
            f"the dtype in {folder} must be one of {', '.join(FLOATS)}, got {config.dtype}"
        )
    pad, size = text.pad_token_id, text.vocab_size
    if pad is not None and not -size <= pad < size:
        raise ValueError(f"pad_token_id must be in [-{size}, {size}), got {pad} in {folder}")
    said = SimpleNamespace(**contents.get(GENERATION_CONFIG, {}))
    suppressed_tokens(said, str(folder / GENERATION_CONFIG))
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


def quantization_config(source: Mapping[str, Any] | Path | str) -> QuantizationConfigMixin:
    """One of transformers' configs, from its settings or a JSON file of them.

    Raises ValueError, in one line, for a file that is not JSON and for settings that no method has.
    """
    settings = source if isinstance(source, Mapping) else read_json(Path(source))
    if not isinstance(settings, Mapping) or "quant_method" not in settings:
        raise ValueError(f'a quantization must be an object with "quant_method", got {source}')
    try:
        config: QuantizationConfigMixin = AutoQuantizationConfig.from_dict(dict(settings))
    except TypeError as error:  # a setting that the method does not have
        raise ValueError(f"{source}: {error}") from None
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
    if unexpected := sorted(more - _old_buffers(folder) if more else more):
        # Those of more layers than the config says, for one: another model than the stored one.
        raise ValueError(
            f"the weights in {folder} hold {unexpected[0]} ({len(unexpected)} in all), "
            "which the config has no use for"
        )


def _old_buffers(folder: Path) -> set[str]:
    """Names of causal masks and rotary frequencies, which old checkpoints hold by layer."""
    names = set()
    for file, name in _stored_tensors(folder):
        shape = file.get_slice(name).get_shape()
        is_rotary = name.endswith(".inv_freq") and len(shape) == 1
        # (1, 1, n, n) of a causal mask, or the one number that is added where it hides something.
        may_be_mask = math.prod(shape) == 1 or (len(shape) == 4 and shape[:2] == [1, 1])
        if is_rotary or (may_be_mask and _is_mask(file.get_tensor(name))):
            names.add(name)
    return names


def _stored_tensors(folder: Path) -> Iterator[tuple[Any, str]]:
    """Each open safetensors file of a folder with each name in it."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            yield from ((file, name) for name in file.keys())  # noqa: SIM118


def _is_mask(tensor: torch.Tensor) -> bool:
    if tensor.numel() == 1:
        return tensor.item() <= LARGEST_HIDDEN
    return not tensor.triu(1).any() and bool(tensor.diagonal(dim1=-2, dim2=-1).all())


def _check_stored_floats(folder: Path, model: PreTrainedModel) -> None:
    """Raise ValueError for a parameter stored in anything but floats, which would be converted."""
    prefix = model.base_model_prefix
    parameters = {name for name, _ in model.named_parameters()}
    for file, name in _stored_tensors(folder):
        stored = file.get_slice(name).get_dtype()
        is_parameter = name in parameters or f"{prefix}.{name}" in parameters
        if is_parameter and stored not in STORED_FLOATS:
            raise ValueError(
                f"the weights in {folder} hold {name} as {stored}, but the model is not quantized"
            )


def check_spellings(safe: object, risky: object, unknown: Mapping[str, object]) -> None:
    """Raise TypeError, naming the right spelling, for models in memory and unknown settings."""
    if isinstance(safe, PreTrainedModel) or isinstance(risky, PreTrainedModel):
        raise TypeError(
            "from_pretrained takes folders or Hub ids: write ModelPair(safe, risky, tokenizer) "
            "for models in memory"
        )
    for name in unknown:
        raise TypeError(f"from_pretrained takes no {name}: {HINTS.get(name, 'it is unknown')}")


def check_placement(device: DeviceMap, safe: LoadOptions, risky: LoadOptions) -> None:
    """Raise ValueError for places of the models that exclude each other."""
    if safe.device_map is not None:
        raise ValueError("a device_map is for the risky model: the safe one lies on one device")
    if risky.device_map is not None and isinstance(device, Mapping) and "risky" in device:
        raise ValueError(
            f"the risky model has a device_map, so it has no device, got {device['risky']!r}"
        )
