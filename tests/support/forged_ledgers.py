"""Ledger files changed by someone who can make their hash right again."""

import copy
import json
import math
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from anchored import Ledger, LedgerError, ModelPair, verify
from anchored.decode.rules.budget import Budget

Lines = list[dict[str, Any]]
"""Header, steps, footer, as the JSON of a ledger's lines."""


def lines_of(ledger: Ledger) -> Lines:
    records = [json.loads(line) for line in ledger.lines()]
    del records[-1]["sha256"]
    return records


def write(records: Lines, path: Path) -> Path:
    """With the hash of what is written; NaN is written too."""
    lines = [json.dumps(record) for record in records]
    footer = {**records[-1], "sha256": sha256("\n".join(lines).encode()).hexdigest()}
    path.write_text("\n".join([*lines[:-1], json.dumps(footer)]) + "\n")
    return path


def changed(ledger: Ledger, change: Callable[[dict, list[dict], dict], Any]) -> Lines:
    """`change` edits header, steps and footer."""
    header, *steps, footer = copy.deepcopy(lines_of(ledger))
    change(header, steps, footer)
    return [header, *steps, footer]


H, F = "header", "footer"


def put(place: str | int, **fields: Any) -> Callable[[dict, list[dict], dict], None]:
    """Change fields of the header, a step (by number) or the footer."""
    return lambda header, steps, footer: _record(place, header, steps, footer).update(fields)


def take(place: str | int, name: str) -> Callable[[dict, list[dict], dict], None]:
    """Leave out a field."""
    return lambda header, steps, footer: _record(place, header, steps, footer).pop(name)


def _record(place: str | int, header: dict, steps: list[dict], footer: dict) -> dict:
    return {H: header, F: footer}.get(place) or steps[place]


def summed_up(steps: list[dict], footer: dict) -> None:
    footer["num_steps"] = len(steps)
    footer["total_spend"] = math.fsum(step["spend"] for step in steps)


def with_budgets(header: dict, steps: list[dict]) -> None:
    """Allowances that follow from the steps' spends."""
    names = {"per_step": "k", "total": "K", "horizon": "horizon", "debt": "debt"}
    budget = Budget(
        **{name: header[key] for name, key in names.items()},
        schedule=header["rule_settings"]["budget"],
    )
    spent = 0.0
    for number, step in enumerate(steps):
        step["budget"] = budget.allowance(number, spent)
        spent += step["spend"]


def refusal(path: Path, pair: ModelPair) -> str:
    """The first thing that is wrong with a ledger, in one line; "" for one that stands."""
    try:
        report = verify(path, pair)
    except LedgerError as error:
        return str(error)
    return next(iter(report.failures), "")
