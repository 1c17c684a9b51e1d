"""Arguments of a call in the forms that users have: prompts and conversations, and settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from numbers import Number
from typing import Any

from transformers import BatchEncoding

from ..fields import checked_nats, converted, whole_number
from .generation import Generation
from .ledger import Ledger
from .levels.chat import Conversation, is_conversation
from .levels.level import Level
from .pair.model_pair import ModelPair
from .rules.rule import Rule
from .settings import RequestError, checked_text

Prompt = str | Sequence[int] | Any
"""A text or token ids: a list, an array or a tensor of them, or what a tokenizer returns."""


def conversations(messages: Any) -> list[Conversation]:
    """One conversation, or several, as a list; ValueError for what is neither."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise ValueError(f"messages must be a list of roles and contents, got {messages!r}")
    listed = [messages] if is_conversation(messages) else list(messages)
    if listed and not any(map(is_conversation, listed)):
        raise ValueError(f"messages must be a list of roles and contents, got {listed[0]!r}")
    return listed


def is_single(value: Any) -> bool:
    """Tell whether a value is one prompt (a text, one row of token ids), conversation or ledger."""
    if isinstance(value, str | Generation | Ledger) or is_conversation(value):
        return True
    return _is_row(_rows(value) if isinstance(value, BatchEncoding) else _as_list(value))


def prompt_list(name: str, values: Any) -> list[str | list[int] | RequestError]:
    """Prompts or continuations as texts and lists of ints, or what is wrong with one of several.

    values: a text, a row of token ids, several of either, or what a tokenizer returns, of which the
    attention mask says what is padding. Raises ValueError, with their name, for anything else.
    """
    if isinstance(values, str):
        return [values]
    listed = _rows(values) if isinstance(values, BatchEncoding) else _as_list(values)
    if not isinstance(listed, list):
        raise ValueError(
            f"{name}s must be a text, a list of token ids or a list of these, got {values!r}"
        )
    items = [_prompt(name, item) for item in ([listed] if _is_row(listed) else listed)]
    errors = [item for item in items if isinstance(item, RequestError)]
    if errors and len(errors) == len(items):  # of another kind altogether
        raise errors[0]
    return items


def _prompt(name: str, item: Any) -> str | list[int] | RequestError:
    row = _rows(item) if isinstance(item, BatchEncoding) else _as_list(item)
    if isinstance(item, str):
        return item
    if not isinstance(row, list) or (row and not _is_row(row)):
        is_chat = isinstance(item, Mapping) or is_conversation(item)
        hint = "; give conversations as messages=" if is_chat else ""
        kind = type(item).__name__
        return RequestError(f"{name} must be a text or a list of token ids, got {kind}{hint}")
    try:
        return [id if type(id) is int else whole_number("a token id", id) for id in row]
    except ValueError as error:
        return RequestError(str(error))


def _as_list(value: Any) -> Any:
    """An array, a tensor (of one dimension or more) or a sequence as a list; others unchanged."""
    if getattr(value, "ndim", 0) > 0 and hasattr(value, "tolist"):
        return value.tolist()
    is_text = isinstance(value, str | bytes | bytearray)
    return list(value) if isinstance(value, Sequence) and not is_text else value


def _rows(encoding: BatchEncoding) -> Any:
    """The token ids that a tokenizer returned, without padding."""
    ids = _as_list(encoding["input_ids"])
    if "attention_mask" not in encoding or not isinstance(ids, list):
        return ids
    mask = _as_list(encoding["attention_mask"])
    if _is_row(ids):
        return list(compress(ids, mask))
    rows = zip(ids, mask, strict=True)
    return [list(compress(_as_list(row), _as_list(kept))) for row, kept in rows]


def _is_row(listed: Any) -> bool:
    """Tell whether a list holds token ids rather than prompts: numbers, whatever they are worth."""
    is_list = isinstance(listed, list) and len(listed) > 0
    return is_list and all(isinstance(i, Number) or getattr(i, "ndim", 1) == 0 for i in listed)


def target_symbols(level: Level, values: Any) -> list[tuple[list[int], str]]:
    """(the symbols of a continuation, why there are none, "" if there are), one by one."""
    targets: list[tuple[list[int], str]] = []
    for text in prompt_list("continuation", values):
        try:
            if isinstance(text, RequestError):
                raise text
            if isinstance(text, str):
                checked_text("the continuation", text)
            targets.append((level.encode_continuation(text), ""))
        except RequestError as error:
            targets.append(([], str(error)))
    if len(targets) == 1 and targets[0][1]:
        raise ValueError(targets[0][1])
    return targets


@dataclass(frozen=True, kw_only=True, slots=True)
class TextValues:
    """The settings of one text of a call."""

    horizon: int
    seed: int = 0
    k: float | None = None
    """Nats per step in place of the rule's."""
    passage: str | None = None
    stop: tuple[str, ...] = ()
    num_samples: int = 1


def call_values(
    count: int,
    horizon: int | Sequence[int],
    *,
    horizon_name: str = "max_new_tokens",
    seed: int | Sequence[int] | None = None,
    k: float | Sequence[float | None] | None = None,
    passages: str | Sequence[str] | None = None,
    stop: str | Sequence[str] | None = (),
    num_return_sequences: int = 1,
) -> list[TextValues]:
    """The settings of `count` texts, of values for all of them or one a text.

    horizon_name: of the argument that the caller named. Raises ValueError for a value of another
    type or out of range.
    """
    num_samples = whole_number("num_return_sequences", num_return_sequences)
    if num_samples < 1:
        raise ValueError(f"num_return_sequences must be >= 1, got {num_samples}")
    seeds = [0 if s is None else whole_number("seed", s) for s in _by_text("seed", seed, count)]
    ks = [None if nats is None else checked_nats("k", nats) for nats in _by_text("k", k, count)]
    stops = converted("stop", [stop] if isinstance(stop, str) else stop or [], list[str])
    horizons = [whole_number(horizon_name, n) for n in _by_text(horizon_name, horizon, count)]
    if min(horizons, default=1) < 1:
        raise ValueError(f"{horizon_name} must be >= 1, got {min(horizons)}")
    columns = (horizons, seeds, ks, _by_text("passages", passages, count))
    return [
        TextValues(horizon=n, seed=s, k=v, passage=p, stop=tuple(stops), num_samples=num_samples)
        for n, s, v, p in zip(*columns, strict=True)
    ]


def _by_text(name: str, value: Any, count: int) -> list[Any]:
    """`value` for each of `count` texts, or its values, one a text."""
    if value is None or isinstance(value, Number | str) or getattr(value, "ndim", 1) == 0:
        return [value] * count
    values = list(value)
    if len(values) != count:
        raise ValueError(f"{name} must be one value or one per prompt: {count}, got {len(values)}")
    return values


def check_parts(pair: Any, rule: Any) -> None:
    """Raise ValueError, naming the right spelling, for what is no pair or no rule."""
    if isinstance(rule, type):
        raise ValueError(f"rule is the class {rule.__name__}: give a rule, {rule.__name__}(...)")
    if not isinstance(pair, ModelPair):
        kind = type(pair).__name__
        raise ValueError(f"pair must be a ModelPair, got {kind}: write Decoder(pair, rule)")
    if not isinstance(rule, Rule):
        raise ValueError(f"rule must be a rule such as Anchored(k=1.5), got {rule!r}")
