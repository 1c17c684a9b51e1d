"""What a call asks for as a list of requests: prompts or ledgers to go on from, seeds, samples."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .generation import Generation
from .ledger import Ledger
from .level import Level
from .request import MAX_SEED, Request

Prompt = str | list[int]
Earlier = Generation | Ledger


@dataclass(frozen=True, slots=True)
class Beginning:
    """Symbols to go on from, and what they have cost already."""

    token_ids: list[int]
    ledger: Ledger | None = None
    """Of the generation that these symbols end with; None for a prompt."""

    @classmethod
    def of(cls, level: Level, ledger: Ledger) -> "Beginning":
        """The text of a ledger; ValueError if it has ended or is not this level's and pair's."""
        header = ledger.header
        if ledger.finish_reason != "length":
            raise ValueError(
                "only a generation that reached its length can be continued, this one ended by "
                f"{ledger.finish_reason!r}"
            )
        if header.level != level.name:
            raise ValueError(f"a {header.level}-level ledger cannot go on at {level.name} level")
        if header.fingerprints["safe"] != level.pair.fingerprints["safe"]:
            raise ValueError("the ledger's bound is against another safe model, it cannot go on")
        return cls(header.prompt_token_ids + ledger.token_ids, ledger)

    @property
    def prior_bound(self) -> float:
        """Nats that the text up to here may have spent."""
        return 0.0 if self.ledger is None else self.ledger.total_bound

    def seed(self, seed: int) -> int:
        """A seed whose uniforms are not those that the text up to here was drawn by."""
        if self.ledger is None:
            return seed
        drawn = f"{self.ledger.header.seed} {self.token_ids} {seed}"
        return int.from_bytes(hashlib.sha256(drawn.encode()).digest()[:8]) % MAX_SEED


def beginnings(
    level: Level,
    prompts: Prompt | Sequence[Prompt],
    continue_from: Earlier | Sequence[Earlier] | None = None,
) -> list[Beginning]:
    """Where each continuation begins; ValueError unless prompts or ledgers are given, and for texts
    whose ratios the level does not know though it was given those of others."""
    begun = _begun(level, prompts, continue_from)
    if (ratios := level.prompt_ratios) is not None:
        ratios.check_prompts([beginning.token_ids for beginning in begun])
    return begun


def _begun(
    level: Level,
    prompts: Prompt | Sequence[Prompt],
    continue_from: Earlier | Sequence[Earlier] | None,
) -> list[Beginning]:
    if continue_from is None:
        return [Beginning(level.encode(prompt)) for prompt in as_list(prompts)]
    if len(prompts):
        raise ValueError("give prompts or continue_from, not both")
    earlier = as_list(continue_from)
    ledgers = [item if isinstance(item, Ledger) else item.ledger for item in earlier]
    return [Beginning.of(level, ledger) for ledger in ledgers]


def request_list(
    begun: Sequence[Beginning],
    horizon: int,
    *,
    seed: int | Sequence[int] = 0,
    k: float | Sequence[float | None] | None = None,
    stop: tuple[str, ...] = (),
    num_return_sequences: int = 1,
) -> list[Request]:
    """`num_return_sequences` requests for each beginning, in order, with seeds one apart.

    Raises ValueError for values out of range.
    """
    if num_return_sequences < 1:
        raise ValueError(f"num_return_sequences must be >= 1, got {num_return_sequences}")
    seeds, ks = one_each("seed", seed, len(begun)), one_each("k", k, len(begun))
    return [
        Request(
            prompt_token_ids=beginning.token_ids,
            max_new_tokens=horizon,
            seed=beginning.seed(seeds[place] + sample),
            k=ks[place],
            stop=stop,
            index=place * num_return_sequences + sample,
            num_return_sequences=num_return_sequences,
            prior_bound=beginning.prior_bound,
        )
        for place, beginning in enumerate(begun)
        for sample in range(num_return_sequences)
    ]


def is_single(given: Any) -> bool:
    """Whether a prompt (a text, a list of token ids) or a ledger is given by itself."""
    if isinstance(given, str | Generation | Ledger):
        return True
    return len(given) > 0 and all(isinstance(item, int) for item in given)


def as_list(given: Any) -> list[Any]:
    """What is given, as a list of prompts or ledgers."""
    return [given] if is_single(given) else list(given)


def one_each(name: str, value: Any, count: int) -> list[Any]:
    """`value` for each of `count` prompts, or its values, one a prompt."""
    if value is None or isinstance(value, int | float):
        return [value] * count
    values = list(value)
    if len(values) != count:
        raise ValueError(f"{name} must be one value or one per prompt: {count}, got {len(values)}")
    return values
