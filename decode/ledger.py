"""The record of one generation, step by step, in a form that shows whether it was touched."""

import hashlib
import json
import math
import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..durable_files import write_durably

SCHEMA = "anchored-ledger/1"
SAMPLER = "coupled/2"
_INFINITE = {"inf": math.inf, "-inf": -math.inf}


class LedgerError(ValueError):
    """A ledger that cannot be trusted: changed, reordered, cut off or not a ledger at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerHeader:
    """Everything that decides a generation before its first token."""

    rule: str
    rule_settings: dict[str, Any]
    sampling: dict[str, Any]
    seed: int
    prompt_token_ids: list[int]
    stop_token_ids: list[int]
    fingerprints: dict[str, str]
    dtype: str
    debt: float
    k: float
    K: float
    horizon: int
    bound: float
    quantization: dict[str, str] = field(default_factory=dict)
    """By "safe" and "risky": what their weights are quantised with; exact ones are left out."""
    level: str = "token"
    """Where this is "byte", token ids are bytes and 256 is the end of the text."""
    level_settings: dict[str, Any] = field(default_factory=dict)
    num_return_sequences: int = 1
    """Samples of the prompt that were drawn together; each has a ledger of its own."""
    prior_bound: float = 0.0
    """Nats that the prompt may have spent, where it ends with an earlier generation."""
    prompt_ratios: list[float] | None = None
    """Nats, log p_r - log p_s of the prompt's symbols; where asked for, see `with_divergences`."""
    least_debt: float | None = None
    """Nats that the caller said the prompt owes at least; the debt is no smaller."""
    passage: str | None = None
    """What some streams of the rule read before the prompt."""
    readings: dict[str, list[int]] | None = None
    """Token ids that streams of the risky model read in place of the prompt, as its chat template
    gives them."""
    words: dict[str, list[str]] | None = None
    """Of a rule that swaps words: those "swapped", and those "left_out" as no token of the pair."""
    schema: str = SCHEMA
    sampler: str = SAMPLER
    stream: dict[str, Any] | None = None
    """What the uniforms follow from beside level and seed, see `random_key`; None in coupled/1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerStep:
    """One token: what it was allowed to spend, what it spent, how likely it was."""

    step: int
    token_id: int
    accepted: bool
    """The token is the safe model's own draw; False where the risky model stepped in."""
    budget: float
    spend: float
    weight: float
    log_prob: float
    """log p* of the token, in nats."""
    safe_log_prob: float | None = None
    """log p_s of the token, in nats; None where the rule does not read the safe model."""
    kl_risky_safe: float | None = None
    """KL(p_r || p_s) of the warped laws in nats; where asked for, see `with_divergences`."""
    kl_star_risky: float | None = None
    """KL(p* || p_r) in nats; the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerFooter:
    """What is known at the end; each field as in `Ledger`."""

    total_spend: float
    num_steps: int
    safe_forwards: int
    risky_forwards: int
    work: dict[str, dict[str, float]] = field(default_factory=dict)
    skipped_risky: int = 0
    drafted: int = 0
    accepted: int = 0
    certified: bool
    finish_reason: str


@dataclass(kw_only=True, slots=True)
class Ledger:
    """Header, one line a step, and a footer with totals and a hash over all lines."""

    header: LedgerHeader
    steps: list[LedgerStep] = field(default_factory=list)
    certified: bool = False
    finish_reason: str = ""
    safe_forwards: int = 0
    risky_forwards: int = 0
    work: dict[str, dict[str, float]] = field(default_factory=dict)
    """By "safe" and "risky", at byte level: nodes computed, mean probability that masking took,
    largest total variation that was left out."""
    skipped_risky: int = 0
    """Tokens that were drawn before the risky model had run for them, as nothing could be spent."""
    drafted: int = 0
    """Tokens that the safe model guessed before the risky one ran, in speculative decoding."""
    accepted: int = 0
    """Those of them that were drawn."""

    @property
    def token_ids(self) -> list[int]:
        """All tokens drawn, the end symbol included."""
        return [step.token_id for step in self.steps]

    @property
    def spent(self) -> float:
        """Sum of the spends in nats (exact: spends are multiples of a power of two)."""
        return math.fsum(step.spend for step in self.steps)

    @property
    def total_bound(self) -> float:
        """Nats of all samples of the prompt together, and of the earlier text that it ends with.

        Infinite where no bound holds for this generation.
        """
        if not self.certified:
            return math.inf
        return self.header.prior_bound + self.header.num_return_sequences * self.header.bound

    @property
    def is_within_bound(self) -> bool:
        """sum(spend) <= bound, in float64, without tolerance."""
        return self.spent <= self.header.bound

    @property
    def footer(self) -> LedgerFooter:
        """The last line but for the hash."""
        own = {f.name: getattr(self, f.name) for f in fields(LedgerFooter) if f.name not in _SUMS}
        return LedgerFooter(total_spend=self.spent, num_steps=len(self.steps), **own)

    def save(self, path: Path | str) -> None:
        """Write JSON lines to `path`, which holds all of them or what it held before."""
        write_durably(Path(path), "".join(line + "\n" for line in self.lines()))

    def lines(self) -> list[str]:
        """The ledger as JSON lines: header, steps, footer."""
        lines = [_dump(_known(self.header)), *(_dump(_known(step)) for step in self.steps)]
        footer = asdict(self.footer)
        return [*lines, _dump({**footer, "sha256": _sha256([*lines, _dump(footer)])})]

    @classmethod
    def load(cls, path: Path | str) -> "Ledger":
        """Read a ledger; LedgerError, in one line, says what is wrong with one that was touched,
        damaged or never a ledger."""
        path = Path(path)
        lines = _read(path).splitlines()
        records = [_parse(line, path, number) for number, line in enumerate(lines, start=1)]
        _check_order(records, path)
        header, *steps, footer = records
        claimed = footer.pop("sha256")
        if _sha256([*lines[:-1], _dump(footer)]) != claimed:
            raise LedgerError(f"{path}: a figure was changed: the lines do not match their sha256")
        return _ledger_of(*_checked_fields(header, steps, footer, path), path)


_SUMS = ("total_spend", "num_steps")
"""Fields of the footer that follow from the steps."""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except IsADirectoryError:
        raise LedgerError(f"{path} is a directory, not a ledger") from None
    except UnicodeDecodeError:
        raise LedgerError(f"{path} is not a ledger: it is not UTF-8 text") from None


def _ledger_of(
    header: dict[str, Any], steps: list[dict[str, Any]], footer: dict[str, Any], path: Path
) -> Ledger:
    """Of lines whose fields are right."""
    ledger = Ledger(
        header=LedgerHeader(**header),
        steps=[LedgerStep(**step) for step in steps],
        **{name: value for name, value in footer.items() if name not in _SUMS},
    )
    if footer["total_spend"] != ledger.spent:
        raise LedgerError(
            f"{path}: the footer counts {footer['total_spend']} nats, the steps {ledger.spent}"
        )
    return ledger


def _checked_fields(
    header: dict[str, Any], steps: list[dict[str, Any]], footer: dict[str, Any], path: Path
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """The same with infinite figures as numbers."""
    kinds = [LedgerHeader, *[LedgerStep] * len(steps), LedgerFooter]
    records = [_with_figures(*pair) for pair in zip(kinds, [header, *steps, footer], strict=True)]
    for number, record in enumerate(records):
        if error := field_error(kinds[number], record):
            raise LedgerError(f"{path}: line {number + 1}: {error}")
    return records[0], records[1:-1], records[-1]


def _check_order(records: list[dict[str, Any]], path: Path) -> None:
    if not records or records[0].get("schema") != SCHEMA:
        raise LedgerError(f"{path}: line 1 is not the header of an {SCHEMA} ledger")
    if len(records) == 1:
        raise LedgerError(f"{path}: cut off after the header: the footer is missing")
    if "sha256" not in records[-1]:
        raise LedgerError(f"{path}: cut off after {len(records) - 1} steps: the footer is missing")
    for expected, record in enumerate(records[1:-1]):
        if record.get("step") != expected:
            raise LedgerError(
                f"{path}: line {expected + 2} holds step {record.get('step')}, "
                f"expected {expected}: lines were reordered or removed"
            )
    if records[-1].get("num_steps") != len(records) - 2:
        raise LedgerError(
            f"{path}: {len(records) - 2} steps, the footer counts {records[-1].get('num_steps')}: "
            "lines were removed"
        )


def _known(record: LedgerHeader | LedgerStep) -> dict[str, Any]:
    """Its fields but those that nobody asked for."""
    return {name: value for name, value in field_values(record).items() if value is not None}


def _dump(record: dict[str, Any]) -> str:
    plain = {key: _to_json(value) for key, value in record.items()}
    return json.dumps(plain, allow_nan=False)


def _to_json(value: Any) -> Any:
    """Infinite floats become strings: JSON has no number for them."""
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _with_figures(kind: type[Any], record: dict[str, Any]) -> dict[str, Any]:
    """The record with the strings of infinite floats as floats, where its field is one of numbers:
    "inf" may be a text as well."""
    types = get_type_hints(kind)
    return {name: _from_json(value, types.get(name)) for name, value in record.items()}


def _from_json(value: Any, kind: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item, kind) for item in value]
    return _INFINITE.get(value, value) if isinstance(value, str) and _has_floats(kind) else value


def _has_floats(kind: Any) -> bool:
    """float, an optional one or a list of them; what a dict holds is never written as a string."""
    if get_origin(kind) is dict:
        return False
    return kind is float or any(map(_has_floats, get_args(kind)))


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line, parse_constant=_refused, object_pairs_hook=_with_each_once)
    except LedgerError as error:
        raise LedgerError(f"{path}: line {number} {error}") from None
    except (ValueError, RecursionError):
        raise LedgerError(f"{path}: line {number} is cut off or not JSON") from None
    if not isinstance(record, dict):
        raise LedgerError(f"{path}: line {number} is not a JSON object")
    return record


def _with_each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a name that stands twice, other programs may read the other value."""
    names = [name for name, _ in pairs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise LedgerError(f"has {reprlib.repr(min(twice))} twice")
    return dict(pairs)


def _refused(constant: str) -> float:
    """NaN is no JSON, though Python reads it; infinite figures are strings."""
    raise ValueError(constant)


def _sha256(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


INT_LIMIT = 2**63
"""Integers are below it in size, so that each fits a tensor and a float64 can hold its value."""


def field_error(kind: type[Any], record: Mapping[str, Any]) -> str:
    """What is wrong with the first wrong field, in one line; "" if all are right.

    kind: a dataclass; fields with a default may be missing. An int counts as a float; NaN as none.
    """
    types, known = get_type_hints(kind), {field.name: field for field in fields(kind)}
    if unknown := [name for name in record if name not in known]:
        return f"unknown field {reprlib.repr(unknown[0])}"
    for name, allowed in known.items():
        if name in record:
            if not _is_of_type(record[name], types[name]):
                return f"{name} must be {_shown(types[name])}, got {reprlib.repr(record[name])}"
        elif allowed.default is MISSING and allowed.default_factory is MISSING:
            return f"field {name!r} is missing"
    return ""


def field_values(record: Any) -> dict[str, Any]:
    """The fields of a dataclass object by name; unlike `asdict` it takes values of any type."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _is_of_type(value: Any, kind: Any) -> bool:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(_is_of_type(value, member) for member in arguments)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin is list:
        return isinstance(value, list) and all(_is_of_type(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            _is_of_type(key, arguments[0]) and _is_of_type(item, arguments[1])
            for key, item in value.items()
        )
    return _is_plain(value, kind)


def _is_plain(value: Any, kind: type) -> bool:
    """type() in place of isinstance, as a bool is an int."""
    if type(value) is int:
        return kind in (int, float) and abs(value) < INT_LIMIT
    return type(value) is kind and not (type(value) is float and math.isnan(value))


def _shown(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
