"""Where a continuation begins: behind a prompt, or behind what an earlier ledger records."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from .ledger import Ledger
from .levels.level import Level
from .replay.consistency import contradictions
from .rules.rule import StreamName


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
        """The text of a ledger, and the bound of it and of what came before it.

        A ledger is a file that anyone can edit. Looked at again: all that `contradictions` looks at
        (so k, K and bound are the rule's, and what certifies nothing has no bound), and that the
        text reached its length without an end symbol. NOT looked at, as only `verify` replays the
        models: whether they gave these tokens, the spends, the debt, the rule, how many samples
        there were and what came before the prompt.
        Raises ValueError, in one line, for a text that has ended, is not this level's and pair's or
        whose ledger contradicts itself.
        """
        header = ledger.header
        if header.level != level.name:
            raise ValueError(f"a {header.level}-level ledger cannot go on at {level.name} level")
        if failures := contradictions(ledger, level):
            raise ValueError(f"the ledger contradicts itself: {failures[0]}")
        if header.fingerprints.get("safe") != level.pair.fingerprints["safe"]:
            raise ValueError("the ledger's bound is against another safe model, it cannot go on")
        only = "only a generation that reached its length can be continued"
        if ledger.finish_reason != "length":
            raise ValueError(f"{only}, this one ended by {ledger.finish_reason!r}")
        if ends := set(ledger.token_ids) & set(level.stop_token_ids):
            raise ValueError(f"{only}, this one holds the end symbol {min(ends)}")
        token_ids = level.encode_continuation(header.prompt_token_ids + ledger.token_ids)
        chat_prompts = header.chat_prompts or {}
        own = {name: [*prompt, *ledger.token_ids] for name, prompt in chat_prompts.items()}
        call = (*header.prompt_token_ids, header.seed, header.prior_bound, header.k, header.horizon)
        has_siblings = header.num_return_sequences > 1
        return cls(token_ids, ledger.total_bound, own, call=call if has_siblings else None)
