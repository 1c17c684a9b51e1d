"""PEFT adapters, merged into the weights of their base model when it is loaded."""

import textwrap
import warnings
from importlib.util import find_spec
from pathlib import Path

from safetensors import SafetensorError
from transformers import PreTrainedModel

MISSING_KEYS = "Found missing adapter keys"
"""How peft's warning of tensors that the adapter lacks begins; it would leave them untrained."""


def check_adapter(adapter: Path, *, is_quantized: bool) -> None:
    """Before the base model is loaded: ModuleNotFoundError without peft, ValueError for rounding.

    is_quantized: of the base model, whose rounded weights would have to be rounded once more.
    """
    if find_spec("peft") is None:
        raise ModuleNotFoundError(
            f"{adapter} is a PEFT adapter, but peft is not installed: pip install 'anchored[peft]'",
            name="peft",
        )
    if is_quantized:
        raise ValueError(f"the adapter in {adapter} cannot be merged into quantised weights")


def merged(model: PreTrainedModel, adapter: Path) -> PreTrainedModel:
    """The base model with the adapter's changes added to its own weights, in place.

    Raises ValueError, in one line, for an adapter that cannot be read, lacks a tensor, does not fit
    or whose method cannot be merged.
    """
    from peft import PeftModel

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=MISSING_KEYS)
            adapted = PeftModel.from_pretrained(model, str(adapter))
        whole: PreTrainedModel = adapted.merge_and_unload()
    except (
        AttributeError,  # of methods that have nothing to merge, prompt tuning for one
        KeyError,
        OSError,
        RuntimeError,
        SafetensorError,
        TypeError,
        UserWarning,
        ValueError,
    ) as error:
        reason = textwrap.shorten(str(error), 200)
        raise ValueError(f"the adapter in {adapter} cannot be merged: {reason}") from error
    return whole
