"""The one check of values: converted to the annotated types of dataclass fields, or refused."""

import difflib
import math
import reprlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Made = TypeVar("Made")
INT_LIMIT = 2**63
"""Integers are below it in size, seeds too, so that each fits a tensor."""
MAX_NATS = 2.0**20
"""The largest k or K: sums of spends above it would not be exact, and no step could spend them."""
MAX_SLIP = 64
"""Characters of an unknown name that are compared with the known ones."""


def fitted(name: str, value: Any, kind: Any) -> Any:
    """A value of a file as an annotated type has it: a text as a path, a list as a tuple, a table
    as the dataclass. A number stays as it is; an int counts as a float, NaN as none.

    Raises ValueError, in one line with the name, for a value of another type.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _as_member(name, value, kind)
    if origin in (list, tuple) and isinstance(value, list):
        items = [fitted(f"{name}[{i}]", item, arguments[0]) for i, item in enumerate(value)]
        return items if origin is list else tuple(items)
    if origin is dict and isinstance(value, dict):
        keys = [fitted(f"a key of {name}", key, arguments[0]) for key in value]
        return {key: fitted(f"{name}.{key}", value[key], arguments[1]) for key in keys}
    if is_dataclass(kind) and isinstance(value, dict):
        return from_record(kind, value, f"{name}.")  # type: ignore[arg-type]  # a class
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    if not _is_plain(value, kind):
        raise _refusal(name, value, kind)
    return value


def _as_member(name: str, value: Any, kind: Any) -> Any:
    """The value as the first type of a union that it fits."""
    members = [member for member in get_args(kind) if member is not NoneType]
    if value is None and NoneType in get_args(kind):
        return None
    if len(members) == 1:
        return fitted(name, value, members[0])
    for member in members:
        try:
            return fitted(name, value, member)
        except ValueError:
            continue
    raise _refusal(name, value, kind)


def _is_plain(value: Any, kind: Any) -> bool:
    """Whether a value is of a plain type; by type(), as isinstance takes a bool for an int."""
    if kind in (Any, object):
        return True
    if get_origin(kind) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(kind))
    if type(value) is int:
        return kind in (int, float) and abs(value) < INT_LIMIT
    if kind in (float, str, bool, int):
        return type(value) is kind and not (kind is float and math.isnan(value))
    return isinstance(kind, type) and not is_dataclass(kind) and isinstance(value, kind)


def _refusal(name: str, value: Any, kind: Any) -> ValueError:
    words = _in_words(kind)
    if kind is int and type(value) is int:
        words += " of 64 bits"  # no ledger and no tensor holds others
    return ValueError(f"{name} must be {words}, got {reprlib.repr(value)}")


_WORDS: dict[Any, str] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "text",
    Path: "a path",
}


def _in_words(kind: Any) -> str:
    """An annotated type in messages: a number, a list of texts, one of kl, max."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(_in_words(member) for member in arguments if member is not NoneType)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (list, tuple):
        item = _in_words(arguments[0])
        is_list = get_origin(arguments[0]) in (list, tuple)
        plural = item.replace("a list", "lists") if is_list else f"{item.removeprefix('a ')}s"
        return f"a list of {plural}"
    if origin is dict or is_dataclass(kind):
        return "a table"
    return _WORDS.get(kind, str(kind))


def from_record(kind: type[Made], record: Mapping[str, Any], prefix: str = "") -> Made:
    """An instance of a dataclass with the values of a JSON object or a table of TOML.

    prefix: goes before the names in messages. Raises ValueError, in one line, for an unknown name,
    a missing one or a value that does not fit; and as the class does.
    """
    return kind(**_values_of(kind, record, prefix))


def field_error(kind: type[Any], record: Mapping[str, Any]) -> str:
    """The message of the first wrong field of a record of a dataclass; "" if all are right.

    Ranges, which the class checks, are left to it.
    """
    try:
        _values_of(kind, record)
    except ValueError as error:
        return str(error)
    return ""


def _values_of(kind: type[Any], record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    types = field_types(kind)
    by_name = {field.name: field for field in fields(kind) if field.init}
    titled, values = prefix or "field ", {}
    for name, value in record.items():
        if name not in by_name:
            close = difflib.get_close_matches(str(name)[:MAX_SLIP], by_name, n=1)
            shown = name if str(name).isidentifier() else reprlib.repr(name)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise ValueError(f"unknown {titled}{shown}{hint}")
        values[name] = fitted(prefix + name, value, types[name])
    for name, field in by_name.items():
        if name not in record and field.default is field.default_factory is MISSING:
            raise ValueError(f"{titled}{name} is missing")
    return values


def field_types(kind: type[Any]) -> dict[str, Any]:
    """The types of a dataclass's fields by name."""
    return _hints(kind)  # type: ignore[arg-type]  # a class is hashable


_hints = cache(get_type_hints)  # a file has thousands of records of a kind


def field_values(record: Any) -> dict[str, Any]:
    """The fields of a dataclass object by name; unlike `asdict` it takes values of any type."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def check_fields(options: Any) -> None:
    """Convert each field of a frozen dataclass that a caller made, as `converted` does.

    Raises ValueError, with the name, for a value that does not fit. Ranges are left to the class,
    and so are fields that no caller gives.
    """
    types = field_types(type(options))
    for name in (field.name for field in fields(options) if field.init):
        value = converted(name, getattr(options, name), types[name])
        object.__setattr__(options, name, value)


def converted(name: str, value: Any, kind: Any) -> Any:
    """A value that a caller gives in Python, of an annotated type: numpy's and torch's scalars as
    plain ones, which a ledger holds, whole numbers as floats where these are asked for.

    NaN is left to the check of a range. Raises ValueError, with the name, for a value of another
    type and for a text with a lone surrogate, half of a character as scraped JSON has them.
    """
    if NoneType in get_args(kind):
        if value is None:
            return None
        kind = get_args(kind)[0]
    value = _plain(value, kind)
    if kind is float and isinstance(value, float) and math.isnan(value):
        return value
    value = fitted(name, value, kind)
    for text in value if kind == list[str] else [value]:
        if isinstance(text, str):
            _check_encodable(name, text)
    return value


def _plain(value: Any, kind: Any) -> Any:
    """The Python value of a scalar, a 0-d array or a 0-d tensor; others as they are."""
    value = value.item() if getattr(value, "ndim", None) == 0 else value
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if get_origin(kind) is list and isinstance(value, Iterable) and not isinstance(value, dict):
        return [_plain(item, get_args(kind)[0]) for item in value]
    if kind is int and isinstance(value, Integral):
        return int(value)
    if kind is float and isinstance(value, Real):
        with suppress(OverflowError):  # an int of more than 308 digits
            return float(value)
    return value


def _check_encodable(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} cannot be written as UTF-8: character {error.start} is a lone surrogate"
        ) from None


def real_number(name: str, value: Any) -> float:
    """A number that a caller gives, as a float; as `converted`."""
    number: float = converted(name, value, float)
    return number


def whole_number(name: str, value: Any) -> int:
    """A whole number of 64 bits that a caller gives, as an int; as `converted`."""
    number: int = converted(name, value, int)
    return number


def checked_nats(name: str, nats: Any) -> float:
    """A k or a K that a caller gives, as a float.

    Raises ValueError unless it is a real number, numpy's too, in [0, MAX_NATS].
    """
    value = real_number(name, nats)
    if not 0.0 <= value <= MAX_NATS:
        raise ValueError(f"{name} must be in [0, {MAX_NATS:.0f}] nats, got {value}")
    return value


def checked_seed(seed: int) -> int:
    """A seed; ValueError unless it is in [0, INT_LIMIT)."""
    if not 0 <= seed < INT_LIMIT:
        raise ValueError(f"seed must be in [0, 2**63), got {seed}")
    return seed


def check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Raise ValueError, in one line, for a value that is not among these."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def check_least(options: object, least: int, *names: str) -> None:
    """Raise ValueError, by its option, for a field below `least`; a tuple holds several numbers,
    None is none."""
    for name in names:
        value = getattr(options, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number is not None and not number >= least:  # so is NaN refused
                raise ValueError(f"--{name.replace('_', '-')} must be >= {least}, got {number}")
