"""The `anchored` object of a request, and the server's limits."""

import hashlib
import hmac
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

from ...fields import INT_LIMIT, MAX_NATS, checked_nats, field_error
from ...kernels.spend import SPEND_QUANTUM
from ..engine.request import Request
from ..rules.anchored import Pathwise
from ..rules.budget import Budget
from ..rules.rule import Rule
from ..settings import Divergence

FIELD: Final = "anchored"
"""The field of a request's body, of each choice of an answer, and of an answer with one choice."""

AVAILABLE: Final = "available"
"""A K of a request: the nats that are left in its accounts; see `Limits.rule_within`."""

CLIENT_ID: Final = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
"""Ids by which gateways name requests: of UUIDs, trace contexts and the like."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The rule of a request that asks for nothing, and the most that it can ask for; nats."""

    rule: Rule = field(default_factory=Pathwise)
    """The rule of requests that ask for nothing."""
    max_k: float | None = None
    """Nats per step. None for no limit."""
    max_total: float | None = None
    """Nats of one text, K: what a bank starts with and what is added to it."""
    max_bank: float | None = None
    """Nats that a bank starts with, and holds at most; no bank at all is above any limit."""
    max_horizon: int | None = None
    """Most new symbols of a request."""

    def __post_init__(self) -> None:
        for name in ("max_k", "max_total", "max_bank"):
            if (nats := getattr(self, name)) is not None:
                checked_nats(name, nats)
        if self.max_horizon is not None and self.max_horizon < 1:
            raise ValueError(f"max_horizon must be >= 1, got {self.max_horizon}")
        k, bank = getattr(self.rule, "k", None), getattr(self.rule, "bank", 0.0)
        if self.max_k is not None and k is not None and k > self.max_k:
            raise ValueError(f"k {k:g} of the rule is above max_k {self.max_k:g}")
        bank = math.inf if bank is None else bank
        if self.max_bank is not None and bank > self.max_bank:
            raise ValueError(f"bank {bank:g} of the rule is above max_bank {self.max_bank:g}")

    def rule_of(self, options: "AnchoredOptions") -> Rule:
        """The rule of a request with these options.

        A rule with a bank and no K, as Pathwise, takes K for a bank that is never refilled. Raises
        ValueError, in one line, for values that no rule has, for what the server's rule does not
        take, and for bounds of a mean where the server's hold for every text.
        """
        rule: Any = self.rule
        taken = {each.name for each in fields(rule)}
        if options.K == AVAILABLE:
            options = replace(options, K=None)
        named: dict[str, Any] = {n: getattr(options, n) for n in ("k", "K", "bank", "divergence")}
        named = {name: value for name, value in named.items() if value is not None}
        if "K" in named and "K" not in taken and {"k", "bank"} <= taken:
            if "bank" in named:
                raise ValueError(f"anchored: K is the bank of the rule {rule.name}: name one alone")
            named |= {"k": 0.0, "bank": named.pop("K")}
        for name, value in named.items():
            if name not in taken:
                raise ValueError(f"anchored: the rule {rule.name} takes no {name}, got {value!r}")
        if named.keys() & {"k", "K"}:  # either replaces both of the server's
            named = {**dict.fromkeys({"k", "K"} & taken), **named}
        changed: Rule = replace(rule, **named)
        if changed.charge == "mean" and rule.charge != "mean":
            raise ValueError(
                f"anchored: the server's bounds hold for every text, and those of divergence "
                f"{options.divergence} for a mean alone: ask for {rule.divergence} or for none"
            )
        return changed

    def rule_within(self, options: "AnchoredOptions", available: float, horizon: int) -> Rule:
        """The rule of a request with K="available", for so many symbols, whose accounts have these
        nats left.

        A rule without a bank gets all of them, within the limits. One with a bank stays as it is
        where they are enough; else its bank, and then its k, are what is left.
        """
        rule = self.rule_of(options)
        most = min(available, MAX_NATS if self.max_total is None else self.max_total)
        budget = rule.budget_for(horizon=horizon, k=None)
        if budget.bank is None:
            by_step = math.inf if self.max_k is None else self.max_k * horizon
            return self.rule_of(replace(options, K=min(most, by_step)))
        if budget.total <= most:
            return rule
        bank = min(budget.bank, most)
        # A quantum less, so that bank + k * horizon is not rounded to more than there is.
        k = max(0.0, (most - bank) / horizon - SPEND_QUANTUM)
        return self.rule_of(replace(options, K=None, k=k, bank=bank))

    def check_horizon(self, horizon: int) -> None:
        """Raise ValueError, in one line, for more symbols than a request may ask for."""
        if self.max_horizon is not None and horizon > self.max_horizon:
            raise ValueError(
                f"anchored: max_tokens must be at most {self.max_horizon}, got {horizon}"
            )

    def check(self, budget: Budget) -> None:
        """Raise ValueError, in one line, for nats beyond the limits."""
        total = "K" if budget.bank is None else "K = bank + k * max_tokens"
        for name, nats, most in (
            ("k", budget.per_step, self.max_k),
            (total, budget.total, self.max_total),
            ("bank", budget.bank, self.max_bank),
        ):
            if most is not None and nats is not None and nats > most:
                raise ValueError(
                    f"anchored: {name} must be at most {most:g} nats here, got {nats:g}"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class AnchoredOptions:
    """The `anchored` object of a request."""

    k: float | None = None
    """Nats per step; K = bank + k * max_tokens."""
    K: float | Literal["available"] | None = None
    """Nats for the whole text, in place of k; see AVAILABLE."""
    divergence: Divergence | None = None
    bank: float | None = None
    """Nats of a bucket that is full at the start, gets k per step and holds no more."""
    seed: int | None = None
    """Replaces the request's `seed`, which counts too."""
    debt: float = 0.0
    """Least debt of the prompt, nats: the debt that is computed can only be raised."""
    sample: int = 0
    """Texts of this prompt and seed before it, which it is drawn independently of."""
    passage: str | None = None
    """A text for a rule that reads one before the prompt."""
    group: str | None = None
    """A group whose account is charged too, where the server keeps accounts."""

    def __post_init__(self) -> None:
        for name in ("k", "K", "bank"):
            if (nats := getattr(self, name)) not in (None, AVAILABLE):
                checked_nats(name, nats)
        if None not in (self.k, self.K):
            raise ValueError(f"give either k or K, got k={self.k} and K={self.K}")
        if not self.debt >= 0.0:
            raise ValueError(f"debt must be >= 0 nats, got {self.debt}")
        if self.sample < 0:
            raise ValueError(f"sample must be >= 0, got {self.sample}")

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "AnchoredOptions":
        """Read them from a request's body.

        Raises ValueError, in one line, for what is no object and for an unknown or a wrong option.
        """
        named = body.get(FIELD) or {}
        if not isinstance(named, dict):
            raise ValueError(f"{FIELD} must be an object")
        values = {name: value for name, value in named.items() if value is not None}
        if error := field_error(cls, values):
            names = ", ".join(each.name for each in fields(cls))
            raise ValueError(f"anchored: {error}; known are {names}")
        return cls(**values)

    def seed_of(self, seed: int | None) -> int | None:
        """The seed of the draw, where `seed` is the request's; ValueError beyond 63 bits."""
        chosen = seed if self.seed is None else self.seed
        if chosen is not None and not 0 <= chosen < INT_LIMIT:
            raise ValueError(f"anchored: seed must be in [0, 2**63), got {chosen}")
        return chosen


def most_nats(text: Request) -> float:
    """Nats that a text with a rule may spend at most, before the debt of its prompt is known: its
    account reserves them."""
    assert text.rule is not None
    budget = text.rule.budget_for(horizon=text.max_new_tokens, k=None)
    return replace(budget, debt=text.least_debt).bound


def seed_of_text(request_id: str, seed: int | None, secret: bytes | None) -> int:
    """The seed, in [0, 2**63), of a text: the request's, or that of its id.

    secret: of a server with accounts, where nobody knows a text's noise before it is drawn, and no
    two texts share it, whatever seeds clients send.
    """
    if secret is None and seed is not None:
        return seed
    named = request_id if secret is None else f"{request_id} {seed}"
    digest = hmac.digest(secret or b"anchored", named.encode(), hashlib.sha256)
    return int.from_bytes(digest[:8], "big") >> 1
