"""The model arguments of lm-eval as the options of a pair, which the command line has too."""

import json
import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from ...configs.config_file import from_table
from ...decode.byte.settings import ByteSettings
from ...decode.models.loading import device_of
from ...decode.pair_options import PairOptions, RuleOptions
from .ranks import num_processes, own_device

logger = logging.getLogger(__name__)

BATCH_SIZE = 16
"""Requests at once unless a number is given: that of `Decoder`."""
UNASKED_BATCH_SIZE = 1
"""What lm-eval passes when nobody asked for a size; its command line gives a text where one did."""


def pair_arguments(
    given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[PairOptions, dict[str, int]]:
    """What lm-eval's model is made of, checked before any model is loaded: the options of the pair,
    and max_gen_toks and seed where they are given.

    given: of model_args. defaults: batch_size, max_batch_size and device of lm-eval itself.
    Raises ValueError for a missing or unknown setting or a value out of range.
    """
    settings = {**_asked(defaults), **given}
    missing = [name for name in ("safe", "risky") if not settings.get(name)]
    if missing and not settings.get("pair"):
        raise ValueError(f"model arguments need {' and '.join(missing)}: a model folder each")
    if num_processes() > 1 and settings.get("risky_device_map"):
        raise ValueError(
            "under torchrun each process has models of its own on one device: risky_device_map "
            "needs one process"
        )
    if settings.get("risky_device") is not None and settings.get("device") is None:
        settings["device"] = str(device_of(None, "safe"))
    settings["batch_size"] = _batch_size(settings)
    counts: dict[str, int] = {
        name: _whole_number(name, settings.pop(name))
        for name in ("max_gen_toks", "seed")
        if name in settings
    }
    pair: PairOptions = from_table(PairOptions, _tables(settings))
    return pair, counts


def _tables(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as tables of `PairOptions`: those of a rule and of bytes, byte_prefetch for
    one, have tables of their own. What no option is called is a setting of the rule."""
    tables: dict[str, Any] = {"rule": {"setting": []}, "byte": {}}
    names = {kind: {own.name for own in fields(kind)} for kind in (PairOptions, RuleOptions)}
    of_bytes = {f"byte_{own.name}": own.name for own in fields(ByteSettings)}
    for name, value in settings.items():
        if name in names[RuleOptions]:
            tables["rule"][name] = value
        elif name in of_bytes:
            tables["byte"][of_bytes[name]] = value
        elif name in names[PairOptions]:
            tables[name] = value
        else:
            tables["rule"]["setting"].append(f"{name}={json.dumps(value)}")
    return tables


def _asked(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Those of lm-eval's own settings that somebody asked for and this machine has."""
    asked = {name: value for name, value in defaults.items() if value is not None}
    if asked.get("batch_size") == UNASKED_BATCH_SIZE:
        del asked["batch_size"]
    if num_processes() > 1 and str(asked.get("device", "cuda")).startswith("cuda"):
        asked["device"] = own_device()
    device = str(asked.get("device", ""))
    if device.startswith("cuda") and not torch.cuda.is_available():
        # lm-eval passes cuda:0 on every machine, and its own models fall back like this.
        logger.warning("there is no CUDA device here: the pair runs on the CPU, not on %s", device)
        asked["device"] = "cpu"
    return asked


def _batch_size(settings: dict[str, Any]) -> int:
    """A whole number; for "auto" or "auto:N" BATCH_SIZE, at most max_batch_size."""
    size, largest = settings.pop("batch_size", "auto"), settings.pop("max_batch_size", None)
    if not str(size).startswith("auto"):
        return _whole_number("batch_size", size)
    return BATCH_SIZE if largest is None else min(BATCH_SIZE, int(largest))


def _whole_number(name: str, value: Any) -> int:
    if not str(value).isdecimal():
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return int(value)
