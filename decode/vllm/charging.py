"""Reserves the bounds of a request to vLLM's server before the engine sees the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..serving.asked import AVAILABLE, GREEDY, Asked, Limits, most_nats, seed_of_secret
from ..serving.reading import DEFAULT_MAX_TOKENS

if TYPE_CHECKING:
    from ..serving.accounts.keeper import Keeper  # imports a database's toolkit


@dataclass(frozen=True, slots=True)
class Wish:
    """A request of a client that has an account."""

    values: Mapping[str, Any]
    """Its body."""
    asked: Asked
    names: Sequence[str]
    """The engine's ids of its texts."""
    is_chat: bool


async def charge(
    keeper: Keeper, limits: Limits, client: str, wish: Wish
) -> tuple[dict[str, Any], dict[str, float]]:
    """Reserve a request's bounds; returns what changes in what it asks for, and the bound of each
    text, by its id, in nats.

    Raises ValueError, in one line, for what cannot be honored, and Refused for nats that are used
    up.
    """
    values, asked = wish.values, wish.asked
    horizon = horizon_of(values, wish.is_chat)
    # 1. The nats that are left, where a request asks for them.
    available = 0.0
    if asked.K == AVAILABLE:
        if len(wish.names) > 1:
            count = len(wish.names)
            raise ValueError(f"anchored: K={AVAILABLE!r} is of one prompt, got {count}")
        available = await keeper.available(client, asked.group)
    # 2. What the engine would refuse is refused before anything is reserved.
    limits.check_horizon(horizon)
    rule = limits.rule_within(asked, available, horizon)
    limits.check(rule.budget_for(horizon=horizon, k=None))
    if values.get("temperature") == 0:
        raise ValueError(GREEDY)
    # 3. The whole bound of each text, and a seed that no client knows: equal prompts of one request
    #    share it, and then their texts too, which tell no more than one of them.
    bounds = dict.fromkeys(wish.names, most_nats(rule, horizon, asked.debt))
    seed = asked.seed_of(_int_or_none(values, "seed"))
    await keeper.reserve(client, asked.group, bounds, rule)
    seed = seed_of_secret(keeper.secret, wish.names[0], seed)
    nats = {name: getattr(rule, name, None) for name in ("k", "K", "bank")}
    return {**nats, "group": None, "seed": seed}, bounds


def num_texts(values: Mapping[str, Any], is_chat: bool) -> int:
    """Texts of an answer: one of a conversation, of a text or of its tokens, else one a prompt."""
    prompts = None if is_chat else values.get("prompt")
    if not isinstance(prompts, list) or not prompts or isinstance(prompts[0], int):
        return 1
    return len(prompts)


def horizon_of(values: Mapping[str, Any], is_chat: bool) -> int:
    """The most tokens of a text, one at least; ValueError where the request leaves it to the
    context's length."""
    names = ("max_tokens", "max_completion_tokens") if is_chat else ("max_tokens",)
    named = [value for name in names if (value := _int_or_none(values, name)) is not None]
    if not named and (is_chat or "max_tokens" in values):
        raise ValueError("max_tokens is missing: accounts reserve the nats of so many tokens")
    if any(value < 0 for value in named):
        raise ValueError(f"max_tokens must be >= 0, got {min(named)}")
    return max(1, max(named, default=DEFAULT_MAX_TOKENS))


def _int_or_none(values: Mapping[str, Any], name: str) -> int | None:
    value = values.get(name)
    if value is None or type(value) is int:
        return value
    raise ValueError(f"{name} must be an integer, got {value!r}")
