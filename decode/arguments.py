"""What a call asks for: prompts, earlier ledgers and seeds become requests."""

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Number
from typing import Any

from .engine.request import Request
from .generation import Generation
from .ledger import Ledger, LedgerHeader
from .levels.chat import Conversation, chat_prompt, is_conversation
from .levels.level import Level
from .replay.replay import recorded_budget
from .rules.budget import checked_nats
from .rules.registry import make_rule
from .rules.rule import StreamName
from .settings import SamplingConfig


@dataclass(frozen=True, slots=True)
class Beginning:
    """Symbols to go on from, and what they have cost already."""

    token_ids: list[int]
    prior_bound: float = 0.0
    """Nats that an earlier generation, which these symbols end with, may have spent."""
    readings: Mapping[StreamName, list[int]] = field(default_factory=dict)
    """What streams of the risky model read in their place, of a conversation."""

    @classmethod
    def of(cls, level: Level, ledger: Ledger) -> "Beginning":
        """The text of a ledger, and the bound of it that follows from the header's own figures.

        A ledger is a file that anyone can edit. Looked at again: that the text reached its length
        without an end symbol, whether its rule and temperature certify anything, that K follows
        from k and the horizon and the bound from K and debt (a larger recorded one counts).
        NOT looked at, as only `verify` replays the models: whether they gave these tokens, the
        spends, the debt, the rule, how many samples there were and what came before the prompt.
        Raises ValueError, in one line, for a text that has ended, is not this level's and pair's or
        has figures that no generation has.
        """
        _check_figures(ledger.header)
        _check_length(ledger, level)
        _check_models(ledger.header, level)
        token_ids = level.encode_continuation(ledger.header.prompt_token_ids + ledger.token_ids)
        readings = ledger.header.readings or {}
        own = {name: [*prompt, *ledger.token_ids] for name, prompt in readings.items()}
        return cls(token_ids, _total_bound(ledger), own)


def _check_figures(header: LedgerHeader) -> None:
    for name in ("horizon", "num_return_sequences"):
        if not getattr(header, name) >= 1:
            raise ValueError(f"the ledger's {name} must be >= 1, got {getattr(header, name)}")
    for name in ("k", "K", "debt", "bound", "prior_bound"):
        if not getattr(header, name) >= 0.0:  # so is NaN refused
            raise ValueError(f"the ledger's {name} must be >= 0 nats, got {getattr(header, name)}")
    k, total, horizon = header.k, header.K, header.horizon
    if k * horizon != total and total / horizon != k:  # either may be the one that was given
        raise ValueError(f"the ledger's K must be k * horizon, got {total} for {k} * {horizon}")


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
    bound = max(header.bound, recorded_budget(header).bound)
    return header.prior_bound + header.num_return_sequences * bound


Prompt = str | list[int]
Earlier = Generation | Ledger


def beginnings(
    level: Level,
    prompts: Prompt | Sequence[Prompt],
    continue_from: Earlier | Sequence[Earlier] | None = None,
    messages: Conversation | Sequence[Conversation] | None = None,
) -> list[Beginning]:
    """Where each continuation begins; ValueError unless either prompts, messages or ledgers are
    given, and for texts whose ratios the level does not know though it was given those of others.
    """
    given = {"prompts": len(prompts) > 0, "messages": messages is not None}
    given["continue_from"] = continue_from is not None
    if sum(given.values()) > 1:
        raise ValueError(f"give {' or '.join(name for name in given if given[name])}, not both")
    if messages is not None:
        chats = [chat_prompt(level, own) for own in conversations(messages)]
        begun = [Beginning(chat.token_ids, readings=chat.readings) for chat in chats]
    elif continue_from is None:
        begun = [Beginning(level.encode(prompt)) for prompt in texts("prompt", prompts)]
    else:
        earlier = as_list(continue_from)
        ledgers = [item if isinstance(item, Ledger) else item.ledger for item in earlier]
        begun = [Beginning.of(level, ledger) for ledger in ledgers]
    if (ratios := level.prompt_ratios) is not None:
        ratios.check_prompts([beginning.token_ids for beginning in begun])
    return begun


def request_list(
    begun: Sequence[Beginning],
    horizon: int | Sequence[int],
    *,
    seed: int | Sequence[int] = 0,
    k: float | Sequence[float | None] | None = None,
    stop: str | Sequence[str] | None = (),
    num_return_sequences: int = 1,
    passages: str | Sequence[str] | None = None,
) -> list[Request]:
    """`num_return_sequences` requests for each beginning, in order, with its seed.

    Those with one prompt and one seed get places 0, 1, ... and so uniforms of their own.
    Raises ValueError for values out of range.
    """
    num_samples = whole_number("num_return_sequences", num_return_sequences)
    if num_samples < 1:
        raise ValueError(f"num_return_sequences must be >= 1, got {num_samples}")
    seeds = [whole_number("seed", value) for value in one_each("seed", seed, len(begun))]
    ks = [None if v is None else checked_nats("k", v) for v in one_each("k", k, len(begun))]
    behind = one_each("passages", passages, len(begun))
    stops, lengths = stop_strings(stop), one_each("max_new_tokens", horizon, len(begun))
    prompts = [i for i in range(len(begun)) for _ in range(num_samples)]
    places = _places([(tuple(begun[i].token_ids), seeds[i]) for i in prompts])
    return [
        Request(
            prompt_token_ids=begun[i].token_ids,
            max_new_tokens=whole_number("max_new_tokens", lengths[i]),
            seed=seeds[i],
            k=ks[i],
            stop=stops,
            index=index,
            place=place,
            num_return_sequences=num_samples,
            prior_bound=begun[i].prior_bound,
            passage=behind[i],
            readings=begun[i].readings,
        )
        for index, (i, place) in enumerate(zip(prompts, places, strict=True))
    ]


def _places(items: Sequence[Hashable]) -> list[int]:
    """Of each item, how many equal ones come before it."""
    counts: Counter[Hashable] = Counter()
    places = []
    for item in items:
        places.append(counts[item])
        counts[item] += 1
    return places


def conversations(messages: Any) -> list[Conversation]:
    """One conversation, or several, as a list."""
    return [messages] if is_conversation(messages) else list(messages)


def is_single(given: Any) -> bool:
    """Whether a prompt (a text, a list of token ids), a conversation or a ledger is given by
    itself."""
    if isinstance(given, str | Generation | Ledger) or is_conversation(given):
        return True
    return len(given) > 0 and all(isinstance(item, int) for item in given)


def as_list(given: Any) -> list[Any]:
    """What is given, as a list of prompts or ledgers."""
    return [given] if is_single(given) else list(given)


def texts(name: str, given: Any) -> list[Prompt]:
    """Prompts or continuations as a list; ValueError, with their name, for anything else."""
    listed = as_list(given)
    for item in listed:
        if isinstance(item, bytes | bytearray) or not isinstance(item, Sequence):
            kind = type(item).__name__
            raise ValueError(f"{name} must be a text or a list of token ids, got {kind}")
    return listed


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Texts at which to cut: none for None, one that is given by itself."""
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def whole_number(name: str, value: Any) -> int:
    """`value`, numpy's too, as an int; ValueError for anything else."""
    if not isinstance(value, Integral):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    return int(value)


def one_each(name: str, value: Any, count: int) -> list[Any]:
    """`value` for each of `count` prompts, or its values, one a prompt."""
    if value is None or isinstance(value, Number | str):
        return [value] * count
    values = list(value)
    if len(values) != count:
        raise ValueError(f"{name} must be one value or one per prompt: {count}, got {len(values)}")
    return values
