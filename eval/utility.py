"""Utility without a judge: held-out bits per byte under p*, teacher forced."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast

from ..decode.byte.byte_alphabet import token_bytes
from ..decode.decoder import Decoder


@dataclass(frozen=True, kw_only=True, slots=True)
class Excerpt:
    """A held-out passage: what the models are given, and what they are scored on."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    num_bytes: int
    """UTF-8 bytes of the scored tokens."""

    def in_bytes(self, tokenizer: PreTrainedTokenizerFast) -> "Excerpt":
        """The same passage for the byte level; of a byte-level BPE tokenizer, without specials."""
        special = set(tokenizer.all_special_ids)
        prompt, target = (
            [token_bytes(tokenizer.convert_ids_to_tokens(id)) for id in ids if id not in special]
            for ids in (self.prompt_token_ids, self.token_ids)
        )
        text = b"".join(target)
        return Excerpt(
            prompt_token_ids=list(b"".join(prompt)), token_ids=list(text), num_bytes=len(text)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Utility:
    """Held-out bits per byte of one setting; lower is better."""

    nats: list[float]
    """-log p* of each excerpt."""
    num_bytes: list[int]

    @property
    def bits_per_byte(self) -> float:
        """All bits over all bytes."""
        return math.fsum(self.nats) / math.log(2) / sum(self.num_bytes)

    @property
    def standard_error(self) -> float:
        """Of bits_per_byte, over excerpts (ratio estimator)."""
        return _ratio_standard_error([nats / math.log(2) for nats in self.nats], self.num_bytes)

    def gain_over(self, other: "Utility") -> tuple[float, float]:
        """(bits per byte saved against `other` on the same excerpts, standard error of that)."""
        if self.num_bytes != other.num_bytes:
            raise ValueError("utilities can be compared on the same excerpts only")
        saved = [
            (theirs - ours) / math.log(2)
            for theirs, ours in zip(other.nats, self.nats, strict=True)
        ]
        return math.fsum(saved) / sum(self.num_bytes), _ratio_standard_error(saved, self.num_bytes)


def excerpts(
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[str],
    *,
    num_prompt_tokens: int = 32,
    num_tokens: int = 128,
) -> list[Excerpt]:
    """The first tokens of each text as prompt, the next ones to score; short texts are left out.

    Excerpts end at whole characters.
    """
    cut = []
    for text in texts:
        limit = num_prompt_tokens + num_tokens
        token_ids = list(tokenizer(text, truncation=True, max_length=limit)["input_ids"])
        prompt, target = token_ids[:num_prompt_tokens], token_ids[num_prompt_tokens:]
        while target and tokenizer.decode(target).endswith("\ufffd"):
            target.pop()
        if target:
            num_bytes = len(tokenizer.decode(target).encode())
            cut.append(Excerpt(prompt_token_ids=prompt, token_ids=target, num_bytes=num_bytes))
    return cut


def utility(
    decoder: Decoder, passages: Sequence[Excerpt], *, k: float | None = None, progress: bool = False
) -> Utility:
    """Score every excerpt under the decoder's rule (k in place of the rule's own, if given).

    Temperature 1, no penalty, K = k * longest excerpt, counted in symbols of the level. Raises
    ValueError if a passage fails.
    """
    scores = decoder.score(
        [passage.prompt_token_ids for passage in passages],
        [passage.token_ids for passage in passages],
        k=k,
        progress=progress,
    )
    for score in scores:
        if score.error:
            raise ValueError(f"utility is not defined: {score.error}")
    return Utility(
        nats=[-score.log_prob for score in scores],
        num_bytes=[passage.num_bytes for passage in passages],
    )


def _ratio_standard_error(numerators: Sequence[float], denominators: Sequence[int]) -> float:
    count = len(numerators)
    if count < 2:
        return math.nan
    ratio = math.fsum(numerators) / sum(denominators)
    residuals = [n - ratio * d for n, d in zip(numerators, denominators, strict=True)]
    variance = math.fsum(residual**2 for residual in residuals) / (count - 1)
    return math.sqrt(variance / count) / (sum(denominators) / count)
