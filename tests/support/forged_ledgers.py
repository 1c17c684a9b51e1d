"""Ledger files changed by someone who can make their hash right again."""

import json
import math
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from anchored import Ledger, LedgerError, ModelPair, verify
from anchored.decode.rules.budget import Budget
from anchored.kernels.spend import SPEND_QUANTUM

Change = Callable[[dict, list[dict], dict], Any]
"""Edits header, steps and footer: the JSON of a ledger's lines."""

H, F = "header", "footer"


def changed(ledger: Ledger, *changes: Change) -> list[str]:
    """The lines of a ledger without its hash, changed; NaN is written too."""
    header, *steps, footer = (json.loads(line) for line in ledger.lines())
    del footer["sha256"]
    for change in changes:
        change(header, steps, footer)
    return [json.dumps(record) for record in (header, *steps, footer)]


def write(lines: list[str], path: Path) -> Path:
    """With the hash of what is written."""
    sha = sha256("\n".join(lines).encode()).hexdigest()
    last = f'{lines[-1].removesuffix("}")}, "sha256": "{sha}"}}'
    path.write_text("\n".join([*lines[:-1], last]) + "\n")
    return path


def refusals(path: Path, pair: ModelPair) -> list[str]:
    """All that is wrong with a ledger, a line each."""
    try:
        return verify(path, pair).failures
    except LedgerError as error:
        return [str(error)]


def put(place: str | int, **fields: Any) -> Change:
    """Change fields of the header, a step (by number) or the footer, by new values or functions of
    the old ones."""

    def change(header: dict, steps: list[dict], footer: dict) -> None:
        record = {H: header, F: footer}.get(place) or steps[place]
        for name, value in fields.items():
            record[name] = value(record[name]) if callable(value) else value

    return change


def summed_up(header: dict, steps: list[dict], footer: dict) -> None:
    """A footer that counts the steps and their spends."""
    footer["num_steps"] = len(steps)
    footer["total_spend"] = math.fsum(step["spend"] for step in steps)


def with_budgets(header: dict, steps: list[dict], footer: dict) -> None:
    """Allowances that follow from the steps' spends, and a footer that does."""
    budget = Budget.recorded(SimpleNamespace(**{"bank": None, **header}))
    for step, nats in zip(steps, budget.allowances(step["spend"] for step in steps), strict=True):
        step["budget"] = nats
    summed_up(header, steps, footer)


def moved(by: dict[int, float]) -> Change:
    """Nats added to costs of steps and to their log p*, with budgets that follow."""

    def change(header: dict, steps: list[dict], footer: dict) -> None:
        for number, nats in by.items():
            step = steps[number]
            step.update(spend=step["spend"] + nats, log_prob=step["log_prob"] + nats)
        with_budgets(header, steps, footer)

    return change


def restated(**figures: Any) -> Change:
    """Other figures of a budget, in the rule's settings too, and all that follows from them."""

    def change(header: dict, steps: list[dict], footer: dict) -> None:
        header.update(figures)
        settings = header["rule_settings"]
        settings.update({name: figures[name] for name in ("k", "bank") if name in figures})
        K = (header.get("bank") or 0.0) + header["k"] * header["horizon"]
        header.update(K=K, bound=max(0.0, K - header["debt"]))
        with_budgets(header, steps, footer)

    return change


def at_new_caps(change: Change) -> Change:
    """A change of budgets after which the tokens that cost all they could still do."""

    def fitted(header: dict, steps: list[dict], footer: dict) -> None:
        capped = [step for step in steps if 0.0 < step["budget"] - step["spend"] < 1e-6]
        change(header, steps, footer)
        for step in capped:
            nats = step["budget"] - 8.0 * SPEND_QUANTUM
            step.update(spend=nats, log_prob=step["safe_log_prob"] + nats)
            with_budgets(header, steps, footer)

    return fitted
