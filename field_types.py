"""Whether values from a file are of the types that a dataclass gives its fields."""

import math
import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

INT_LIMIT = 2**63
"""Integers are below it in size, so that each fits a tensor and a float64 can hold its value."""


def field_error(kind: type[Any], record: Mapping[str, Any]) -> str:
    """One line that says what is wrong with the first wrong field; "" if all are right.

    kind: a dataclass; fields with a default may be missing. An int counts as a float; NaN as none.
    """
    types = field_types(kind)
    known = {field.name: field for field in fields(kind)}
    if unknown := [name for name in record if name not in known]:
        return f"unknown field {reprlib.repr(unknown[0])}"
    for name, allowed in known.items():
        if name in record:
            if not is_of_type(record[name], types[name]):
                return f"{name} must be {type_name(types[name])}, got {reprlib.repr(record[name])}"
        elif allowed.default is MISSING and allowed.default_factory is MISSING:
            return f"field {name!r} is missing"
    return ""


def field_types(kind: type[Any]) -> dict[str, Any]:
    """The types of a dataclass's fields by name."""
    return _hints(kind)  # type: ignore[arg-type]  # a class is hashable


_hints = cache(get_type_hints)  # a file has thousands of records of a kind


def field_values(record: Any) -> dict[str, Any]:
    """The fields of a dataclass object by name; unlike `asdict` it takes values of any type."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def is_of_type(value: Any, kind: Any) -> bool:
    """Whether a value as JSON or TOML give it is of an annotated type, containers item by item."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in (Any, object):
        return True
    if origin in (Union, UnionType):
        return any(is_of_type(value, member) for member in arguments)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if origin is list:
        return isinstance(value, list) and all(is_of_type(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            is_of_type(key, arguments[0]) and is_of_type(item, arguments[1])
            for key, item in value.items()
        )
    return _is_plain(value, kind)


def _is_plain(value: Any, kind: type) -> bool:
    """Whether a value is of a plain type; by type(), as isinstance takes a bool for an int."""
    if type(value) is int:
        return kind in (int, float) and abs(value) < INT_LIMIT
    return type(value) is kind and not (type(value) is float and math.isnan(value))


def type_name(kind: Any) -> str:
    """An annotated type in messages: int, list[int], one of 'kl', 'max'."""
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
