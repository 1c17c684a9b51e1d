"""Which uniforms draw a request: the Philox key of its seed, its prompt and its place."""

import hashlib
from typing import Any

from .ledger import SAMPLER, LedgerHeader
from .prompt_ratios import prompt_digest

SEED_SAMPLER = "coupled/1"
"""The sampler of older ledgers: its key is the seed alone, so the turns of a conversation shared
their uniforms, and two texts of bound 0 were 0.63 nats from independent ones."""


def random_key(seed: int, prompt: list[int], *, level: str, place: int) -> int:
    """The key, in [0, 2**63), of the uniforms that draw one request; positions count from 0.

    prompt: its symbols at this level. place: how many requests of its call before it have the same
    prompt and the same seed.
    Bounds of several texts add up where the texts are drawn independently. A conversation goes on
    with one seed, samples have one prompt too: the hash gives each a key of its own. Two of n
    requests share one with a probability below n**2 / 2**64.
    """
    named = f"{SAMPLER} {seed} {level} {prompt_digest(prompt)} {place}"
    return int.from_bytes(hashlib.sha256(named.encode()).digest()[:8], "big") >> 1


def random_stream(prompt: list[int], *, place: int) -> dict[str, Any]:
    """What a ledger records of the key, beside level and seed."""
    return {"prompt_sha256": prompt_digest(prompt), "place": place}


def recorded_key(header: LedgerHeader) -> int:
    """The key that a ledger says it was drawn by.

    Raises ValueError for an unknown sampler and for a stream that is not that of the header's
    prompt. Any place is taken, as any seed is: both were the caller's choice.
    """
    if header.sampler == SEED_SAMPLER:
        return header.seed
    if header.sampler != SAMPLER:
        raise ValueError(f"sampler must be {SEED_SAMPLER} or {SAMPLER}, got {header.sampler!r}")
    place = None if header.stream is None else header.stream.get("place")
    if type(place) is not int or place < 0:
        raise ValueError(f"the stream must have a place, a whole number >= 0, got {place!r}")
    if header.stream != random_stream(header.prompt_token_ids, place=place):
        raise ValueError(f"the stream {header.stream} does not follow from the header's prompt")
    return random_key(header.seed, header.prompt_token_ids, level=header.level, place=place)
