"""Log-probabilities as OpenAI's clients read them."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

from ..engine.log_probs import TokenLogProbs
from ..levels.level import Level

IMPOSSIBLE: Final = -9999.0
"""A log-probability of -inf, which JSON lacks; OpenAI's number for it."""


class LogProbTexts:
    """The JSON of log-probabilities of one pair's symbols."""

    def __init__(self, level: Level) -> None:
        self._level = level

    def symbol(self, symbol: int) -> str:
        """The text of one symbol alone: of a byte that is no character, its number."""
        if self._level.name == "byte":
            is_end = symbol in self._level.stop_token_ids
            return "" if is_end else bytes([symbol]).decode("utf-8", "backslashreplace")
        return str(self._level.pair.tokenizer.decode([symbol]))

    def prompt(self, symbols: Sequence[int]) -> str:
        """The text of a prompt, without its special tokens."""
        if self._level.name == "byte":
            return bytes(symbols).decode("utf-8", "replace")
        return str(self._level.pair.tokenizer.decode(list(symbols), skip_special_tokens=True))

    def of_completion(
        self, places: Sequence[TokenLogProbs], *, first: int | None = None, offset: int = 0
    ) -> dict[str, Any]:
        """The `logprobs` of a completion, or of a part of one. first: the prompt's first symbol,
        which follows nothing, where the prompt is echoed. offset: characters before the part."""
        texts = [] if first is None else [self.symbol(first)]
        begun = [None] * len(texts)
        texts += [self.symbol(place.token_id) for place in places]
        lengths = map(len, texts)
        return {
            "tokens": texts,
            "token_logprobs": [*begun, *(_finite(place.log_prob) for place in places)],
            "top_logprobs": [*begun, *map(self._likeliest, places)],
            "text_offset": list(accumulate(lengths, initial=offset))[:-1],
        }

    def of_chat(self, places: Sequence[TokenLogProbs]) -> dict[str, Any]:
        """The `logprobs` of an answer, or of a part of one."""
        content = [
            {
                **self._one(place.token_id, place.log_prob),
                "top_logprobs": [self._one(*each) for each in place.top],
            }
            for place in places
        ]
        return {"content": content, "refusal": None}

    def _likeliest(self, place: TokenLogProbs) -> dict[str, float]:
        """The likeliest texts; of two symbols with one text the likelier, which comes first."""
        texts: dict[str, float] = {}
        for symbol, log_prob in place.top:
            texts.setdefault(self.symbol(symbol), _finite(log_prob))
        return texts

    def _one(self, symbol: int, log_prob: float) -> dict[str, Any]:
        text = self.symbol(symbol)
        return {"token": text, "logprob": _finite(log_prob), "bytes": list(text.encode())}


def _finite(log_prob: float) -> float:
    return log_prob if math.isfinite(log_prob) else IMPOSSIBLE
