"""Where a continuation begins: behind a prompt, or behind what an earlier ledger records."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from .ledger import Ledger, LedgerHeader
from .levels.level import Level
from .replay.replay import recorded_budget
from .rules.registry import make_rule
from .rules.rule import StreamName
from .settings import SamplingConfig


@dataclass(frozen=True, slots=True)
class Beginning:
    """Symbols to go on from, and what they have cost already."""

    token_ids: list[int]
    prior_bound: float = 0.0
    """Nats that an earlier generation, which these symbols end with, may have spent."""
    chat_prompts: Mapping[StreamName, list[int]] = field(default_factory=dict)
    """A conversation's prompts, by the streams of the risky model that read them instead."""
    error: str = ""
    """Why the text cannot be read, "" if it can."""
    call: tuple[Hashable, ...] | None = None
    """A name of the call in which this sample was drawn beside others."""

    @classmethod
    def of(cls, level: Level, ledger: Ledger) -> "Beginning":
        """The text of a ledger, and the bound of it that follows from the header's own figures.

        A ledger is a file that anyone can edit. Looked at again: that the text reached its length
        without an end symbol, whether its rule and temperature certify anything, that k and K are
        the rule's and that the bound follows from K and debt (a larger recorded one counts).
        NOT looked at, as only `verify` replays the models: whether they gave these tokens, the
        spends, the debt, the rule, how many samples there were and what came before the prompt.
        Raises ValueError, in one line, for a text that has ended, is not this level's and pair's or
        has figures that no generation has.
        """
        header = ledger.header
        _check_figures(header)
        _check_length(ledger, level)
        _check_models(header, level)
        token_ids = level.encode_continuation(header.prompt_token_ids + ledger.token_ids)
        chat_prompts = header.chat_prompts or {}
        own = {name: [*prompt, *ledger.token_ids] for name, prompt in chat_prompts.items()}
        call = (*header.prompt_token_ids, header.seed, header.prior_bound, header.k, header.horizon)
        has_siblings = header.num_return_sequences > 1
        return cls(token_ids, _total_bound(ledger), own, call=call if has_siblings else None)


def _check_figures(header: LedgerHeader) -> None:
    for name in ("horizon", "num_return_sequences"):
        if not getattr(header, name) >= 1:
            raise ValueError(f"the ledger's {name} must be >= 1, got {getattr(header, name)}")
    for name in ("k", "K", "debt", "bound", "prior_bound"):
        if not getattr(header, name) >= 0.0:  # so is NaN refused
            raise ValueError(f"the ledger's {name} must be >= 0 nats, got {getattr(header, name)}")


def _check_length(ledger: Ledger, level: Level) -> None:
    only = "only a generation that reached its length can be continued"
    if ledger.finish_reason != "length":
        raise ValueError(f"{only}, this one ended by {ledger.finish_reason!r}")
    if len(ledger.steps) != ledger.header.horizon:
        raise ValueError(
            f"{only}, this one has {len(ledger.steps)} of {ledger.header.horizon} steps"
        )
    if ends := set(ledger.token_ids) & set(level.stop_token_ids):
        raise ValueError(f"{only}, this one holds the end symbol {min(ends)}")


def _check_models(header: LedgerHeader, level: Level) -> None:
    if header.level != level.name:
        raise ValueError(f"a {header.level}-level ledger cannot go on at {level.name} level")
    if header.fingerprints.get("safe") != level.pair.fingerprints["safe"]:
        raise ValueError("the ledger's bound is against another safe model, it cannot go on")


def _total_bound(ledger: Ledger) -> float:
    """`Ledger.total_bound`, recomputed."""
    header = ledger.header
    rule = make_rule(header.rule, header.rule_settings)
    is_greedy = SamplingConfig.of(header.sampling).is_greedy
    if is_greedy or not (ledger.certified and rule.is_certified):
        return math.inf
    bound = max(header.bound, recorded_budget(header, rule).bound)
    return header.prior_bound + header.num_return_sequences * bound
