"""The arguments of lm-eval's models and requests, as options of a pair and of its decoder, and
their texts, cut to fit into the models."""

import json
import logging
import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ...decode.levels.level import Level
from ...decode.pair.loading import device_of
from ...decode.pair_options import PairOptions, RuleOptions
from ...decode.settings import SAMPLING_NAMES
from ...fields import from_record

logger = logging.getLogger(__name__)

WITHOUT_EFFECT = (
    *("transformers_version", "_from_model_config", "bos_token_id", "pad_token_id", "use_cache"),
    *("cache_implementation", "cache_config", "early_stopping", "length_penalty"),
)
"""Settings of transformers that change no token here: prompts bring their begin tokens, padding is
not read, caches are this library's, and there are no beams."""
BATCH_SIZE = 16
"""Requests at once by default, as in `Decoder`."""
UNASKED_BATCH_SIZE = 1
"""The size that lm-eval passes by default; one from its command line is a text."""
LONGEST_WAIT = timedelta(days=7)
"""The slowest process may take so long: lm-eval waits for it after each kind of request."""
OFF = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences", "n", "best_of"), 1),
    **dict.fromkeys(("encoder_repetition_penalty", "typical_p"), 1),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), 0),
    **dict.fromkeys(("min_length", "min_new_tokens", "min_tokens"), 0),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "diversity_penalty"), 0),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), 0),
}
"""Settings of other decoders with the values that have no effect."""
SPARE_BYTES = 32
"""Symbols added to every text at byte level: open tokens may take a few positions."""
Split = tuple[list[int], list[int]]
"""Symbols of a context, and of the continuation that is scored after it."""


def pair_arguments(
    arguments: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[PairOptions, dict[str, int]]:
    """The options of the pair, and max_gen_toks and seed if set, before any model is loaded.
    arguments: model_args of lm-eval. defaults: its batch_size, max_batch_size and device. Raises
    ValueError for a missing or unknown setting or a value out of range."""
    settings = {**_set_defaults(defaults), **arguments}
    missing = [name for name in ("safe", "risky") if not settings.get(name)]
    if missing and not settings.get("pair"):
        raise ValueError(f"model arguments need {' and '.join(missing)}: a model folder each")
    if num_processes() > 1 and settings.get("risky_device_map"):
        raise ValueError(
            "under torchrun each process has its models on one device: risky_device_map "
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
    try:
        pair = from_record(PairOptions, _tables(settings), "model argument ")
    except ValueError as error:  # by the name that the argument has here
        words = str(error).replace("model argument rule.", "model argument ")
        raise ValueError(words) from None
    return pair, counts


def _tables(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as `PairOptions` and a table of the rule; unknown names are settings of it."""
    tables: dict[str, Any] = {"rule": {"setting": []}}
    of_pair, of_rule = (
        {field.name for field in fields(kind)} for kind in (PairOptions, RuleOptions)
    )
    for name, value in settings.items():
        if name in of_rule:
            tables["rule"][name] = value
        elif name in of_pair:
            tables[name] = value
        else:
            tables["rule"]["setting"].append(f"{name}={json.dumps(value)}")
    return tables


def _set_defaults(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of lm-eval that a user set and this machine has."""
    chosen = {name: value for name, value in defaults.items() if value is not None}
    if chosen.get("batch_size") == UNASKED_BATCH_SIZE:
        del chosen["batch_size"]
    if num_processes() > 1 and str(chosen.get("device", "cuda")).startswith("cuda"):
        rank, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        # The device of this process among those of its machine.
        chosen["device"] = f"cuda:{rank % count}" if torch.cuda.is_available() else "cpu"
    device = str(chosen.get("device", ""))
    if device.startswith("cuda") and not torch.cuda.is_available():
        # lm-eval passes cuda:0 on every machine, and its models fall back like this.
        logger.warning("there is no CUDA device here: the pair runs on the CPU, not on %s", device)
        chosen["device"] = "cpu"
    return chosen


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


def generation_settings(
    gen_kwargs: dict[str, Any], default_max_gen_toks: int
) -> tuple[int, dict[str, Any]]:
    """Number of tokens, and the decoder's other arguments, from a task's generation_kwargs."""
    from lm_eval.models.utils import normalize_gen_kwargs

    set_here = {name: value for name, value in gen_kwargs.items() if value is not None}
    settings = dict(normalize_gen_kwargs(set_here, default_max_gen_toks))
    max_new_tokens = int(settings.pop("max_gen_toks"))
    stop = tuple(text for text in settings.pop("until") if text)
    temperature = settings.pop("temperature", 1.0)
    if not settings.pop("do_sample"):
        temperature = 0.0
    settings = {
        name: value
        for name, value in settings.items()
        if name not in WITHOUT_EFFECT and (name not in OFF or OFF[name] != value)
    }
    if unknown := {n: v for n, v in settings.items() if n not in SAMPLING_NAMES}:
        raise ValueError(
            f"generation settings must be among {', '.join(SAMPLING_NAMES)}, got {unknown}"
        )
    fixed = {"temperature": temperature, "stop": stop}
    return max_new_tokens, {"repetition_penalty": 1.0, **settings, **fixed}


def process_group() -> dist.ProcessGroup | None:
    """The group of all processes of torchrun, which wait for each other here; None without others.
    Counts and results are gathered through the host, whatever device the models are on; a group of
    lm-eval's models may be of GPUs alone."""
    if num_processes() == 1:
        return None
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=LONGEST_WAIT)
    return dist.new_group(backend="gloo", timeout=LONGEST_WAIT)


def num_processes() -> int:
    """The number of processes that torchrun started, with this one."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class Fitting:
    """Texts of a level and the models' contexts. Tokens are cut as in lm-eval's models. Bytes,
    which each model reads as its tokens, are cut between characters."""

    def __init__(self, level: Level) -> None:
        self._level = level
        self._deals_in_bytes = level.name == "byte"

    def prompt(self, context: list[int], max_new_tokens: int) -> list[int]:
        """The longest end of a context that leaves room for new tokens; ValueError without one. At
        byte level every new byte may be a token; if that leaves no room, they are counted as in
        `Decoder.generate`."""
        num_new = self._level.horizon(max_new_tokens, None)
        for number in (num_new * self._level.symbols_per_token, num_new):
            if (end := self._end_of(context, [], number)) is not None:
                return end
        raise ValueError(
            f"max_gen_toks must leave room for context, got {max_new_tokens}: "
            f"{self._problem(context[-1:], [], num_new)}"
        )

    def scored(self, context: list[int], continuation: list[int]) -> list[int]:
        """The longest end of a context that fits with its continuation. Raises ValueError if the
        continuation leaves no room for any context."""
        # The last token that is scored is not read.
        more = SPARE_BYTES if self._deals_in_bytes else -1
        if (end := self._end_of(context, continuation, more)) is not None:
            return end
        raise ValueError(
            f"a continuation of {len(continuation)} {self._level.name}s leaves no room for "
            f"context: {self._problem(context[-1:], continuation, more)}"
        )

    def windows(self, symbols: list[int], prefix: int) -> list[Split]:
        """A text that follows `prefix`, every symbol scored once, in pieces with a context each."""
        if self._deals_in_bytes:
            return self._byte_windows(symbols, prefix)
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        windows = get_rolling_token_windows(
            token_list=symbols,
            prefix_token=prefix,
            max_seq_len=self._level.context_length or len(symbols) + 1,
            context_len=1,
        )
        return [make_disjoint_window(window) for window in windows]

    def _byte_windows(self, symbols: list[int], prefix: int) -> list[Split]:
        windows: list[Split] = []
        starts = [*self._starts(symbols), len(symbols)]
        context, first = [prefix], 0  # of the characters, not of the bytes
        while first < len(starts) - 1:
            rest = symbols[starts[first] :]
            lengths = [end - starts[first] for end in starts[first + 1 :]]
            num_fitting = bisect_left(
                lengths, True, key=lambda n: bool(self._problem(context, rest[:n], SPARE_BYTES))
            )
            if not num_fitting:
                raise ValueError("the models read too few tokens for a single character")
            first += num_fitting
            windows.append((context, symbols[starts[first - num_fitting] : starts[first]]))
            context = symbols[starts[first - 1] : starts[first]]
        return windows

    def _end_of(self, context: list[int], continuation: list[int], more: int) -> list[int] | None:
        """The longest end of a context that fits; None if no symbol does."""
        starts = self._starts(context) or [0]
        cut = bisect_left(
            starts, True, key=lambda start: not self._problem(context[start:], continuation, more)
        )
        return context[starts[cut] :] if cut < len(starts) else None

    def _problem(self, context: list[int], continuation: list[int], more: int) -> str:
        """The reason for which a context does not fit, "" if it does. It is counted as a whole text
        with `more` symbols, and as by the decoder before the continuation."""
        too_long = self._level.too_long
        return too_long([*context, *continuation], more) or (
            too_long(context, len(continuation) - 1) if continuation else ""
        )

    def _starts(self, symbols: Sequence[int]) -> list[int]:
        """Indices at which a text may be cut: before any token, before a character of UTF-8."""
        return [
            index
            for index, symbol in enumerate(symbols)
            if not self._deals_in_bytes or symbol & 0xC0 != 0x80
        ]
