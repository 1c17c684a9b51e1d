"""The wishes in a request's `anchored` object, and the most that a server lets it ask for."""

import hashlib
import hmac
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

from ...fields import INT_LIMIT, MAX_NATS, checked_nats, field_error
from ..rules.anchored import Anchored
from ..rules.budget import Budget
from ..rules.rule import OpenRule, Rule, takes_passage
from ..settings import DEFAULT_K, Divergence

FIELD: Final = "anchored"
"""The field of a request's body, of each choice of an answer, and of an answer with one choice."""

EXTRA_FIELD: Final = "vllm_xargs"
"""Another field of a request's body for the same, where each name has the prefix below."""

REQUEST_PREFIX: Final = "anchored_"
"""Begins the names of a request's extra arguments that are for us."""

AVAILABLE: Final = "available"
"""A K of a request: all nats that are left in its accounts, within the server's limits."""

GREEDY: Final = "anchored: a greedy text certifies nothing, so that no account takes it"

CLIENT_ID: Final = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
"""Ids by which gateways name requests: of UUIDs, trace contexts and the like."""

DEFAULT_RULE = Anchored(k=DEFAULT_K)
"""The rule of requests that ask for nothing, where no other is named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The rule of a request that asks for nothing, and the most that it can ask for; nats."""

    rule: Rule = DEFAULT_RULE
    """The rule of requests that ask for nothing."""
    max_k: float | None = None
    """Nats a step; with the horizon it bounds K = k * max_tokens too. None for no limit."""
    max_total: float | None = None
    """Nats of one text, K."""
    max_bank: float | None = None
    """Nats that are carried over from step to step; no bank at all is above any limit."""
    max_horizon: int | None = None
    """Most new symbols of a request."""
    special_tokens: dict[str, int] = field(default_factory=dict)
    """Special tokens that may be drawn and end no text, by name: no text holds one."""

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

    def rule_of(self, asked: "Asked") -> Rule:
        """The rule of a request that asks for these; ValueError for values that no rule has, for
        what the server's rule does not take, and for a weaker divergence than the server's."""
        if asked.K == AVAILABLE or asked.group is not None:
            raise ValueError(f"anchored: K={AVAILABLE!r} and group need a server with accounts")
        named: dict[str, Any] = {"bank": asked.bank, "order": asked.order}
        named = {name: value for name, value in named.items() if value is not None}
        if asked.divergence is not None:  # whose order is the request's too, or none
            named |= {"divergence": asked.divergence, "order": asked.order}
        if asked.k is not None or asked.K is not None:
            named |= {"k": asked.k, "K": asked.K}
        if not named:
            return self.rule
        rule: Any = self.rule
        taken = {each.name for each in fields(rule)}
        for name, value in named.items():
            if value is not None and name not in taken:
                raise ValueError(f"anchored: the rule {rule.name} takes no {name}, got {value!r}")
        changed: Rule = replace(rule, **{n: value for n, value in named.items() if n in taken})
        if _order_of(changed) < _order_of(rule):
            raise ValueError(
                f"anchored: a request may ask for a larger order than the server's, "
                f"{_order_of(rule):g} (1 is kl, inf max), and for no smaller one, got "
                f"{_order_of(changed):g}"
            )
        return changed

    def check_passage(self, asked: "Asked") -> None:
        """Raise ValueError, in one line, for a passage that the rule does not read."""
        if asked.passage is not None and not takes_passage(self.rule):
            raise ValueError(f"anchored: the rule {self.rule.name} reads no passage")

    def most(self, available: float, horizon: int) -> float:
        """The K of a request for so many symbols that asks for all nats that are left."""
        by_step = math.inf if self.max_k is None else self.max_k * horizon
        return min(available, by_step, MAX_NATS if self.max_total is None else self.max_total)

    def check_horizon(self, horizon: int) -> None:
        """Raise ValueError, in one line, for more symbols than a request may ask for."""
        if self.max_horizon is not None and horizon > self.max_horizon:
            raise ValueError(
                f"anchored: max_tokens must be at most {self.max_horizon}, got {horizon}"
            )

    def check(self, budget: Budget) -> None:
        """Raise ValueError, in one line, for nats beyond the limits."""
        for name, nats, most in (
            ("k", budget.per_step, self.max_k),
            ("K", budget.total, self.max_total),
            ("bank", budget.bank, self.max_bank),
        ):
            if most is not None and nats is not None and nats > most:
                raise ValueError(
                    f"anchored: {name} must be at most {most:g} nats here, got {nats:g}"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """The wishes in the `anchored` object of a request, or in its extra arguments."""

    k: float | None = None
    """Nats a step; K = k * max_tokens."""
    K: float | Literal["available"] | None = None
    """Nats for the whole text, in place of k; see AVAILABLE."""
    divergence: Divergence | None = None
    order: float | None = None
    """Order of divergence renyi."""
    bank: float | None = None
    """Most nats that are carried over from step to step."""
    seed: int | None = None
    """In place of the request's `seed`, which counts too."""
    debt: float = 0.0
    """Least debt of the prompt, nats: the debt that is computed can only be raised."""
    sample: int = 0
    """Texts of this prompt and seed before it, which it is drawn independently of."""
    passage: str | None = None
    """A text for a rule that reads one before the prompt."""
    group: str | None = None
    """A group whose account is charged too, where the server keeps accounts."""
    client_id: str = ""
    """The id by which the client names its request, which is in the journal."""

    def __post_init__(self) -> None:
        # ValueError for what no rule has.
        if self.K == AVAILABLE or self.group is not None:
            self.charged(0.0)
        else:
            Limits().rule_of(self)
        if not self.debt >= 0.0:
            raise ValueError(f"debt must be >= 0 nats, got {self.debt}")
        if self.sample < 0:
            raise ValueError(f"sample must be >= 0, got {self.sample}")
        client_id_of(self.client_id.encode())

    def charged(self, available: float) -> "Asked":
        """The same of a request whose accounts are known; available: nats left in them."""
        return replace(self, K=available if self.K == AVAILABLE else self.K, group=None)

    @classmethod
    def of(cls, extra_args: Mapping[str, Any] | None) -> "Asked":
        """From a request's extra arguments, those of other programs left out.

        Raises ValueError, in one line, for an unknown or a wrong one.
        """
        named = {
            name.removeprefix(REQUEST_PREFIX): value
            for name, value in (extra_args or {}).items()
            if name.startswith(REQUEST_PREFIX) and value is not None
        }
        if error := field_error(cls, named):
            known = ", ".join(each.name for each in fields(cls))
            raise ValueError(f"anchored: {error}; known are {known}")
        return cls(**named)

    def seed_of(self, seed: int | None) -> int | None:
        """The seed of the draw, where `seed` is the request's; ValueError beyond 63 bits."""
        chosen = seed if self.seed is None else self.seed
        if chosen is not None and not 0 <= chosen < INT_LIMIT:
            raise ValueError(f"anchored: seed must be in [0, 2**63), got {chosen}")
        return chosen


def _order_of(rule: Rule) -> float:
    """The order of a rule's divergence: the same nats bound more, the larger it is."""
    return {"kl": 1.0, "max": math.inf}.get(str(rule.divergence), rule.order or 1.0)


def most_nats(rule: Rule | OpenRule, horizon: int, least_debt: float) -> float:
    """Nats that a text may spend at most, before the debt of its prompt is known: its account
    reserves them."""
    return replace(rule.budget_for(horizon=horizon, k=None), debt=least_debt).bound


def seed_of_name(request_id: str) -> int:
    """The seed, in [0, 2**63), of a request that names none: that of its id."""
    return int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:8], "big") >> 1


def seed_of_secret(secret: bytes, request_id: str, seed: int | None) -> int:
    """The seed, in [0, 2**63), of a text that is charged to an account: nobody knows its noise
    before it is drawn, and no two texts share it, whatever seeds clients send."""
    message = f"{request_id} {seed}".encode()
    return int.from_bytes(hmac.digest(secret, message, hashlib.sha256)[:8], "big") >> 1


def client_id_of(value: bytes) -> str:
    """The id of a header's value, "" for none; ValueError for one that fits no line of a log."""
    name = value.decode("utf-8", "replace")
    if name and not CLIENT_ID.fullmatch(name):
        raise ValueError("x-request-id must have up to 128 letters, digits or any of .:/+=@_-")
    return name


def extra_arguments(request: Mapping[str, Any]) -> dict[str, Any]:
    """The extra arguments of a request's body, with what its `anchored` names among them.

    Raises ValueError, in one line, for what is no object and for an `anchored` that asks for what
    is not there.
    """
    asked, extra = request.get(FIELD) or {}, request.get(EXTRA_FIELD) or {}
    if not isinstance(asked, dict) or not isinstance(extra, dict):
        raise ValueError(f"{FIELD} and {EXTRA_FIELD} must be objects")
    extra = {**extra, **{REQUEST_PREFIX + name: value for name, value in asked.items()}}
    Asked.of(extra)
    return extra
