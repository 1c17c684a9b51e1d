"""The model arguments of lm-eval, values by name, as a decoder."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from ...decode.byte.settings import ByteSettings
from ...decode.decoder import Decoder
from ...decode.models.loading import LoadOptions, device_of, quantization_config
from ...decode.models.model_pair import ModelPair
from ...decode.rules.prefix_debt import PromptRatios
from ...decode.rules.registry import make_rule
from ...decode.rules.rule import Rule
from .ranks import num_processes, own_device

logger = logging.getLogger(__name__)

BATCH_SIZE = 16
"""Requests at once unless a number is given: that of `Decoder`."""
UNASKED_BATCH_SIZE = 1
"""What lm-eval passes when nobody asked for a size; its command line gives a text where one did."""

PAIR = ("safe", "risky", "dtype", "allow_quantized_safe", "tp_size")
PLACES = ("device", "risky_device", "risky_quantization")
DECODER = ("level", "engine", "speculate")


@dataclass(frozen=True, kw_only=True, slots=True)
class HarnessArguments:
    """What a pair, its rule and its decoder are made of; checked before any model is loaded."""

    pair: dict[str, Any]
    """Of `ModelPair.from_pretrained`."""
    rule: Rule
    decoder: dict[str, Any]
    """Of `Decoder`, beside these two."""
    counts: dict[str, int]
    """max_gen_toks and seed, where they are given."""

    @classmethod
    def of(cls, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> "HarnessArguments":
        """given: of model_args. defaults: batch_size, max_batch_size and device of lm-eval itself.

        Raises ValueError for a missing or unknown setting or a value out of range.
        """
        settings = {**_asked(defaults, is_split=given.get("tp_size", 1) != 1), **given}
        if missing := [name for name in ("safe", "risky") if not settings.get(name)]:
            raise ValueError(f"model arguments need {' and '.join(missing)}: a model folder each")
        if num_processes() > 1 and settings.get("risky_device_map"):
            raise ValueError(
                "under torchrun each process has models of its own: risky_device_map needs one "
                "process, tp_size splits a model over all of them"
            )
        batch_size = _batch_size(settings)
        counts = {
            name: _whole_number(name, value)
            for name, value in _taken(settings, ("max_gen_toks", "seed")).items()
        }
        pair = {**_taken(settings, PAIR), **_options(settings), **_places(settings)}
        decoder = {"batch_size": batch_size, **_decoder_settings(settings)}
        rule = make_rule(settings.pop("rule", "anchored"), settings)
        return cls(pair=pair, rule=rule, decoder=decoder, counts=counts)

    @property
    def divides_requests(self) -> bool:
        """Whether processes of torchrun share the requests; else each answers all of them."""
        return self.pair.get("tp_size", 1) == 1

    def make_decoder(self) -> Decoder:
        """Load the pair; raises what `ModelPair.from_pretrained` and `Decoder` do."""
        return Decoder(ModelPair.from_pretrained(**self.pair), self.rule, **self.decoder)


def _asked(defaults: Mapping[str, Any], *, is_split: bool) -> dict[str, Any]:
    """Those of lm-eval's own settings that somebody asked for and this machine has."""
    asked = {name: value for name, value in defaults.items() if value is not None}
    if asked.get("batch_size") == UNASKED_BATCH_SIZE:
        del asked["batch_size"]
    if is_split:  # each process has a device of its own
        asked.pop("device", None)
    elif num_processes() > 1 and str(asked.get("device", "cuda")).startswith("cuda"):
        asked["device"] = own_device()
    device = str(asked.get("device", ""))
    if device.startswith("cuda") and not torch.cuda.is_available():
        # lm-eval passes cuda:0 on every machine, and its own models fall back like this.
        logger.warning("there is no CUDA device here: the pair runs on the CPU, not on %s", device)
        asked["device"] = "cpu"
    return asked


def _taken(settings: dict[str, Any], names: Iterable[str], prefix: str = "") -> dict[str, Any]:
    """Settings of these names behind the prefix, which are then no longer among the others."""
    return {name: settings.pop(prefix + name) for name in names if prefix + name in settings}


def _batch_size(settings: dict[str, Any]) -> int:
    """A whole number; for "auto" or "auto:N" BATCH_SIZE, at most max_batch_size."""
    size, largest = settings.pop("batch_size", "auto"), settings.pop("max_batch_size", None)
    if not str(size).startswith("auto"):
        return _whole_number("batch_size", size)
    return BATCH_SIZE if largest is None else min(BATCH_SIZE, int(largest))


def _places(settings: dict[str, Any]) -> dict[str, Any]:
    """Where the models go, and how the risky one is quantised."""
    places = {n: v for n, v in _taken(settings, PLACES).items() if v is not None}
    if (risky_device := places.pop("risky_device", None)) is not None:
        safe_device = device_of(places.get("device"), "safe")
        places["device"] = {"safe": safe_device, "risky": risky_device}
    if "risky_quantization" in places:
        places["risky_quantization"] = quantization_config(places["risky_quantization"])
    return places


def _options(settings: dict[str, Any]) -> dict[str, LoadOptions]:
    """safe_revision, risky_device_map and the like: every field of LoadOptions, by model."""
    names = [field.name for field in fields(LoadOptions)]
    own = {model: _taken(settings, names, f"{model}_") for model in ("safe", "risky")}
    return {f"{model}_options": LoadOptions(**values) for model, values in own.items() if values}


def _decoder_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """level, engine, speculate; prompt_ratios, a file; byte_mode and the like of ByteSettings."""
    own = _taken(settings, DECODER)
    if byte := _taken(settings, [field.name for field in fields(ByteSettings)], "byte_"):
        own["byte_settings"] = ByteSettings(**byte)
    if "prompt_ratios" in settings:
        own["prompt_ratios"] = PromptRatios.load(settings.pop("prompt_ratios"))
    return own


def _whole_number(name: str, value: Any) -> int:
    if not str(value).isdecimal():
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return int(value)
