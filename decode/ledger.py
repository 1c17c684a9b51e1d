"""The record of one generation, step by step, in a form that shows whether it was touched."""

import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from ..durable_files import json_value, write_durably
from ..fields import field_error, field_types, field_values, whole_number
from ..inputs import RepeatedName, with_each_once
from .event_bound import charged_event_bound
from .settings import Charge

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
    """Tokens that end the text; none of one that goes on after them."""
    fingerprints: dict[str, str]
    dtype: str
    debt: float
    k: float
    K: float
    horizon: int
    bound: float
    bank: float | None = None
    """Nats of the bucket that was full at the start, less the debt; None without one."""
    charge: Charge | None = None
    """The log-ratio of p* to p_s that each step was charged: its mean (a bound of KL), its worst,
    or that of the token that was drawn (bounds of every text); None where spends bound nothing."""
    quantization: dict[str, str] = field(default_factory=dict)
    """The quantization of "safe" and "risky"; exact models are left out."""
    level: str = "token"
    """Token ids at level "byte" are bytes, and 256 is the end of the text."""
    level_settings: dict[str, Any] = field(default_factory=dict)
    num_return_sequences: int = 1
    """Samples of the prompt that were drawn together; each has its ledger."""
    prior_bound: float = 0.0
    """Nats that the prompt may have spent, where it ends with an earlier generation, and those that
    `bound` lacks for the debt of what was drawn: no draw lowers the sum of both."""
    prompt_ratios: list[float] | None = None
    """Nats, log p_r - log p_s of the prompt's symbols; where asked for, see `with_divergences`."""
    least_debt: float | None = None
    """The least debt of the prompt that the caller named, nats; the debt is no smaller."""
    passage: str | None = None
    """The text that some streams of the rule read before the prompt."""
    chat_prompts: dict[str, list[int]] | None = None
    """Token ids that streams of the risky model read, by its chat template, in place of the
    prompt."""
    words: dict[str, list[str]] | None = None
    """The words that a rule swaps: "swapped", or "left_out" as no token of the pair."""
    schema: str = SCHEMA
    sampler: str = SAMPLER
    stream: dict[str, Any] = field(default_factory=dict)
    """Figures that decide the uniforms with level and seed, see `random_key`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerStep:
    """One token: what it was allowed to spend, what it spent, how likely it was."""

    step: int
    token_id: int
    accepted: bool
    """The token is the safe model's draw; False where the risky model stepped in."""
    budget: float
    spend: float
    """Nats; negative where a token that is charged as it was drawn gave some back."""
    weight: float
    log_prob: float
    """log p* of the token, in nats."""
    safe_log_prob: float | None = None
    """log p_s of the token, in nats; None where the rule does not read the safe model."""
    kl_risky_safe: float | None = None
    """KL(p_r || p_s) after warpers, nats; where asked for, see `with_divergences`."""
    kl_star_risky: float | None = None
    """KL(p* || p_r) in nats; the same."""


@dataclass(kw_only=True, slots=True)
class LedgerTotals:
    """Figures of a whole text."""

    safe_forwards: int = 0
    risky_forwards: int = 0
    work: dict[str, dict[str, float]] = field(default_factory=dict)
    """Work of "safe" and "risky" at byte level, see `ByteCounts`: nodes, and the mean probability
    that masking took."""
    skipped_risky: int = 0
    """Tokens that were drawn before the risky model had run for them, as nothing could be spent."""
    drafted: int = 0
    """Tokens that the safe model guessed before the risky one ran, in speculative decoding."""
    accepted: int = 0
    """Guesses of `drafted` that were drawn."""
    certified: bool = False
    """Whether the bound holds for this text. It is False, whoever says otherwise, where the spends
    are no evidence of it: see `keeps_budget`."""
    finish_reason: str = ""


@dataclass(kw_only=True, slots=True)
class LedgerFooter(LedgerTotals):
    """The last line but for the hash."""

    total_spend: float
    num_steps: int


@dataclass(kw_only=True, slots=True)
class Ledger(LedgerTotals):
    """Header, one line a step, and a footer with totals and a hash over all lines."""

    header: LedgerHeader
    steps: list[LedgerStep] = field(default_factory=list)
    claims_bound: bool = field(init=False, repr=False, compare=False)
    """Whether it was called certified where it was made or written; `verify` asks why."""

    def __post_init__(self) -> None:
        self.claims_bound = self.certified
        self.certified = self.certified and keeps_budget(self.header, self.steps)

    @property
    def token_ids(self) -> list[int]:
        """All tokens drawn, the end symbol included."""
        return [step.token_id for step in self.steps]

    @property
    def spent(self) -> float:
        """Sum of the spends in nats (exact: spends are multiples of a power of two).

        Where drawn tokens are charged, the text is e**spent times as likely as from the safe model;
        less likely where that is negative.
        """
        return math.fsum(step.spend for step in self.steps)

    @property
    def total_bound(self) -> float:
        """Nats of all samples of the prompt together, and of the earlier text that it ends with.

        Infinite where no bound holds for this generation.
        """
        if not self.certified:
            return math.inf
        return self.header.prior_bound + self.header.num_return_sequences * self.header.bound

    def window_bound(self, w: int) -> float:
        """Nats that any `w` steps in a row can spend at most, whatever came before: the smaller of
        the bound and bank + w k, and the bound alone without a bank.

        Unless steps are charged their mean, no passage is more than e**this times as likely as from
        the safe model. Raises ValueError for `w` < 1, and where no bound holds.
        """
        if (w := whole_number("w", w)) < 1:
            raise ValueError(f"w must be >= 1, got {w}")
        self._check_certified()
        bank, bound = self.header.bank, self.header.bound
        return bound if bank is None else min(bound, bank + w * self.header.k)

    def event_bound(self, safe_log_prob: float) -> float:
        """The largest probability with which this text, with the one that it continues, was to be
        in an event to which the safe model gives this log-probability: see `event_bound`. Raises
        ValueError where no bound holds for this generation.
        """
        self._check_certified()
        nats = self.header.prior_bound + self.header.bound
        return charged_event_bound(self.header.charge, nats, safe_log_prob)

    def _check_certified(self) -> None:
        if not self.certified:
            raise ValueError("no bound holds for a ledger that is not certified")

    @property
    def is_within_bound(self) -> bool:
        """The spends sum to at most the bound, after every step, in float64, without tolerance."""
        return most_spent(self.steps) <= self.header.bound

    @property
    def footer(self) -> LedgerFooter:
        """The last line but for the hash."""
        totals = {name: getattr(self, name) for name in field_types(LedgerTotals)}
        return LedgerFooter(total_spend=self.spent, num_steps=len(self.steps), **totals)

    def save(self, path: Path | str, *, overwrite: bool = True) -> None:
        """Write JSON lines to `path`, which holds all of them or what it held before.

        Without `overwrite` a file that exists is kept; FileExistsError names the one written to.
        """
        text = "".join(line + "\n" for line in self.lines())
        write_durably(Path(path), text, overwrite=overwrite)

    def lines(self) -> list[str]:
        """The ledger as JSON lines: header, steps, footer."""
        records: list[LedgerHeader | LedgerStep] = [self.header, *self.steps]
        lines = [_dump(known_fields(record)) for record in records]
        footer = field_values(self.footer)
        return [*lines, _dump({**footer, "sha256": _sha256([*lines, _dump(footer)])})]

    @classmethod
    def load(cls, path: Path | str, part: Sequence[int] | None = None) -> "Ledger":
        """Read a ledger; LedgerError, in one line, says what is wrong with one that was touched,
        damaged or never a ledger.

        part: where it begins in a file that holds several, and its length, both in bytes.
        """
        path = Path(path)
        lines = _read(path, part).splitlines()
        records = [_parse(line, path, number) for number, line in enumerate(lines, start=1)]
        _check_order(records, path)
        claimed = records[-1].pop("sha256")
        if _sha256([*lines[:-1], _dump(records[-1])]) != claimed:
            raise LedgerError(f"{path}: a figure was changed: the lines do not match their sha256")
        kinds = [LedgerHeader, *[LedgerStep] * (len(records) - 2), LedgerFooter]
        made: list[Any] = []
        for kind, record in zip(kinds, records, strict=True):
            values = with_figures(kind, record)
            if error := field_error(kind, values):
                raise LedgerError(f"{path}: line {len(made) + 1}: {error}")
            made.append(kind(**values))
        header, *steps, footer = made
        totals = {name: getattr(footer, name) for name in field_types(LedgerTotals)}
        ledger = cls(header=header, steps=steps, **totals)
        if footer.total_spend != ledger.spent:
            counts = f"the footer counts {footer.total_spend} nats, the steps {ledger.spent}"
            raise LedgerError(f"{path}: {counts}")
        return ledger


def ledger_parts(path: Path) -> list[tuple[int, int]]:
    """The offset and the length of each ledger of a file, in bytes; none is read."""
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    begins = itertools.accumulate(map(len, lines), initial=0)
    # A header's schema; in a text its quotes would be escaped.
    heads = [begin for begin, line in zip(begins, lines, strict=False) if begin and _HEAD in line]
    return [(begin, end - begin) for begin, end in itertools.pairwise([0, *heads, len(content)])]


_HEAD = json.dumps({"schema": SCHEMA})[1:-1].encode()


def _read(path: Path, part: Sequence[int] | None) -> str:
    start, length = part or (0, -1)
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(length).decode("utf-8")
    except IsADirectoryError:
        raise LedgerError(f"{path} is a directory, not a ledger") from None
    except UnicodeDecodeError:
        raise LedgerError(f"{path} is not a ledger: it is not UTF-8 text") from None


def _check_order(records: list[dict[str, Any]], path: Path) -> None:
    if not records or records[0].get("schema") != SCHEMA:
        raise LedgerError(f"{path}: line 1 is not the header of an {SCHEMA} ledger")
    if any(record.get("schema") == SCHEMA for record in records[1:]):
        raise LedgerError(f"{path} holds several ledgers: `ledger_parts` says where each begins")
    if len(records) == 1:
        raise LedgerError(f"{path}: cut off after the header: the footer is missing")
    if "sha256" not in records[-1]:
        raise LedgerError(f"{path}: cut off after {len(records) - 1} steps: the footer is missing")
    for expected, record in enumerate(records[1:-1]):
        if (step := record.get("step")) != expected:
            holds = f"line {expected + 2} holds step {step}, expected {expected}"
            raise LedgerError(f"{path}: {holds}: lines were reordered or removed")
    if (counted := records[-1].get("num_steps")) != (num_steps := len(records) - 2):
        counts = f"{num_steps} steps, the footer counts {counted}"
        raise LedgerError(f"{path}: {counts}: lines were removed")


def keeps_budget(header: LedgerHeader, steps: Sequence[LedgerStep]) -> bool:
    """Whether every spend is at most its step's budget, none is negative unless drawn tokens are
    charged, and their sum is within a finite bound after every step: without that nothing may be
    called certified. All figures in nats; NaN keeps nothing."""
    least = -math.inf if header.charge == "drawn" else 0.0
    is_kept = all(least <= step.spend <= step.budget for step in steps)
    return is_kept and math.isfinite(header.bound) and most_spent(steps) <= header.bound


def most_spent(steps: Sequence[LedgerStep]) -> float:
    """The largest sum of the spends of any first steps, in nats, exact; 0 of none."""
    return max(itertools.accumulate((step.spend for step in steps), initial=0.0))


def known_fields(record: LedgerHeader | LedgerStep) -> dict[str, Any]:
    """The fields of a line by name, but those that were not asked for."""
    return {name: value for name, value in field_values(record).items() if value is not None}


def _dump(record: dict[str, Any]) -> str:
    return json.dumps(json_value(record))


def ledger_of(source: Any) -> Ledger:
    """A ledger, that of a result or of a stream that has ended, or that of a file by its name.

    Raises ValueError for anything else, and LedgerError for a file that was touched or damaged.
    """
    ledger = getattr(source, "ledger", source)
    if isinstance(ledger, str | Path):
        return Ledger.load(ledger)
    if not isinstance(ledger, Ledger):
        kind = type(source).__name__
        raise ValueError(f"ledger must be a ledger, a result or a file of one, got {kind}")
    return ledger


def with_figures(kind: type[Any], record: dict[str, Any]) -> dict[str, Any]:
    """The record with the strings of infinite floats as floats, where its field is one of numbers:
    "inf" may be a text as well."""
    types = field_types(kind)
    return {name: _from_json(value, types.get(name)) for name, value in record.items()}


def _from_json(value: Any, kind: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item, kind) for item in value]
    return _INFINITE.get(value, value) if isinstance(value, str) and _has_floats(kind) else value


def _has_floats(kind: Any) -> bool:
    """float, an optional one or a list of them."""
    return kind is float or any(map(_has_floats, get_args(kind)))


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line, parse_constant=_refused, object_pairs_hook=with_each_once)
    except RepeatedName as error:
        raise LedgerError(f"{path}: line {number} {error}") from None
    except (ValueError, RecursionError):
        raise LedgerError(f"{path}: line {number} is cut off or not JSON") from None
    if not isinstance(record, dict):
        raise LedgerError(f"{path}: line {number} is not a JSON object")
    return record


def _refused(constant: str) -> float:
    """NaN is no JSON, though Python reads it; infinite figures are strings."""
    raise ValueError(constant)


def _sha256(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
