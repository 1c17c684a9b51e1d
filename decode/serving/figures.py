"""The figures that an answer gives of a text: what it may cost, and what it has cost."""

import math
from collections.abc import Sequence
from typing import Any

from ...durable_files import json_value
from ..generation import MOST_NATS
from ..ledger import LedgerHeader
from .asked import FIELD


def answer_figures(
    request_id: str, header: LedgerHeader, *, spent: float, certified: bool, error: str
) -> dict[str, Any]:
    """Plain values; nats. spent: by the tokens of the answer. error: "" of a text without one.

    Where drawn tokens are charged, "times_as_likely" is e**spent: how many times as likely the text
    was as from the safe model, at most.
    """
    figures: dict[str, Any] = {
        "id": request_id,
        "rule": header.rule,
        "horizon": header.horizon,
        "k": header.k,
        "K": header.K,
        "debt": header.debt,
        "spent": spent,
        "bound": header.bound,
        "certified": certified,
    }
    if header.bank is not None:
        figures["bank"] = header.bank
    if header.charge is not None:
        figures["charge"] = header.charge
    if header.charge == "drawn" and certified:  # of the safe model's
        figures["times_as_likely"] = math.exp(min(spent, MOST_NATS))
    if error:
        figures["error"] = error
    plain: dict[str, Any] = json_value(figures)
    return plain


def figures_at_the_top(answer: dict[str, Any], choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The answer, or a chunk of it, with the figures of its choice where it has but one."""
    figures = [choice[FIELD] for choice in choices if FIELD in choice]
    if len(figures) == len(choices) == 1:
        answer[FIELD] = figures[0]
    return answer
