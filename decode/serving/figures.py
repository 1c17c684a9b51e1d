"""The figures that an answer gives of a text: what it may cost, and what it has cost."""

from collections.abc import Sequence
from typing import Any

from ...durable_files import json_value
from ..ledger import LedgerHeader
from .asked import FIELD


def answer_figures(
    request_id: str, header: LedgerHeader, *, spent: float, certified: bool, error: str
) -> dict[str, Any]:
    """Plain values; nats. spent: by the tokens of the answer. error: "" of a text without one."""
    figures: dict[str, Any] = {
        "id": request_id,
        "k": header.k,
        "K": header.K,
        "debt": header.debt,
        "spent": spent,
        "bound": header.bound,
        "certified": certified,
    }
    if header.bank is not None:
        figures["bank"] = header.bank
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
