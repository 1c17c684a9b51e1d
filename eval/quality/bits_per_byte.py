"""Utility without a judge: held-out bits per byte under p*, teacher forced."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from transformers import PreTrainedTokenizerFast

from ...decode.decoder import Decoder
from ...decode.levels.level import Level
from ..statistics import ratio_standard_error

PROMPT_TOKENS: Final = 32
"""Tokens of a held-out text before the part that is scored."""
PART_OF_CHARACTER: Final = "\ufffd"
"""Tokenizers' replacement of bytes that are not a whole character."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Excerpt:
    """A held-out passage: the prompt, and the tokens that are scored."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    num_bytes: int
    """UTF-8 bytes of the scored tokens."""

    def in_symbols(self, tokenizer: PreTrainedTokenizerFast, level: Level) -> "Excerpt":
        """The same text in the symbols of another level: bytes, or another tokenizer's tokens."""
        prompt, target = (
            str(tokenizer.decode(token_ids, skip_special_tokens=True))
            for token_ids in (self.prompt_token_ids, self.token_ids)
        )
        return Excerpt(
            prompt_token_ids=level.encode(prompt),
            token_ids=level.encode_continuation(target),
            num_bytes=self.num_bytes,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Utility:
    """Held-out bits per byte of one setting; lower is better."""

    nats: list[float]
    """-log p* of each excerpt."""
    num_bytes: list[int]
    error: str = ""
    """Error of the first excerpt that failed, whose nats are nan; "" if none did."""

    @property
    def bits_per_byte(self) -> float:
        """All bits over all bytes; nan if an excerpt failed."""
        return math.fsum(self.nats) / math.log(2) / sum(self.num_bytes)

    @property
    def standard_error(self) -> float:
        """The standard error of bits_per_byte, over excerpts (ratio estimator)."""
        return _ratio_standard_error([nats / math.log(2) for nats in self.nats], self.num_bytes)

    def gain_over(self, other: "Utility") -> tuple[float, float]:
        """(bits per byte saved against `other` on the same excerpts, standard error of that)."""
        if self.num_bytes != other.num_bytes:
            raise ValueError("utilities can be compared on the same excerpts only")
        pairs = zip(other.nats, self.nats, strict=True)
        saved = [(theirs - ours) / math.log(2) for theirs, ours in pairs]
        return math.fsum(saved) / sum(self.num_bytes), _ratio_standard_error(saved, self.num_bytes)


def excerpts(
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[str],
    *,
    num_prompt_tokens: int = PROMPT_TOKENS,
    num_tokens: int = 128,
) -> list[Excerpt]:
    """The first tokens of each text as prompt, the next ones to score; short texts are left out.
    Excerpts begin and end at whole characters: a prompt that would end inside one takes the rest of
    it, a scored part that would is shorter. So their bytes are counted in text, with any tokenizer:
    num_bytes are the UTF-8 bytes that the scored tokens add to the prompt's text."""
    limit = num_prompt_tokens + num_tokens
    encoded = (tokenizer(text, truncation=True, max_length=limit)["input_ids"] for text in texts)
    cut = (_excerpt(tokenizer, token_ids, num_prompt_tokens) for token_ids in encoded)
    return [excerpt for excerpt in cut if excerpt.num_bytes > 0]


def utility(
    decoder: Decoder, excerpts: Sequence[Excerpt], *, passages: Sequence[str] | None = None
) -> Utility:
    """Score every excerpt under the decoder's rule: temperature 1, no penalty, K = k * the longest
    excerpt, in symbols of the level. passages: for rules that read one before each excerpt, such as
    RCAD."""
    scores = decoder.score(
        [excerpt.prompt_token_ids for excerpt in excerpts],
        [excerpt.token_ids for excerpt in excerpts],
        passages=passages,
    )
    return Utility(
        nats=[math.nan if score.error else -score.log_prob for score in scores],
        num_bytes=[excerpt.num_bytes for excerpt in excerpts],
        error=next((score.error for score in scores if score.error), ""),
    )


def _excerpt(
    tokenizer: PreTrainedTokenizerFast, token_ids: list[int], num_prompt_tokens: int
) -> Excerpt:
    """An excerpt of a text's tokens; without bytes if no whole character is left to score."""

    def text_of(length: int) -> str:
        return str(tokenizer.decode(token_ids[:length]))

    def is_whole(length: int) -> bool:
        return not text_of(length).endswith(PART_OF_CHARACTER)

    lengths = range(min(num_prompt_tokens, len(token_ids)), len(token_ids) + 1)
    start = next(filter(is_whole, lengths), len(token_ids))
    end = next(filter(is_whole, reversed(lengths)), start)
    num_bytes = len(text_of(end).encode()) - len(text_of(start).encode())
    return Excerpt(
        prompt_token_ids=token_ids[:start], token_ids=token_ids[start:end], num_bytes=num_bytes
    )


def _ratio_standard_error(numerators: Sequence[float], denominators: Sequence[int]) -> float:
    """`ratio_standard_error` with a variance over count - 1; nan of a single excerpt."""
    if (count := len(numerators)) < 2:
        return math.nan
    return math.sqrt(count / (count - 1)) * ratio_standard_error(numerators, denominators)
