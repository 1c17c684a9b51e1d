"""What fits into the models: contexts cut at the left, long texts cut into windows."""

from bisect import bisect_left
from collections.abc import Sequence

from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from ...decode.byte.byte_level import BYTES_PER_TOKEN
from ...decode.levels.level import Level

Split = tuple[list[int], list[int]]
"""Symbols of a context, and of the continuation that is scored behind it."""

SPARE_BYTES = 32
"""At byte level, counted with every text: tokens that are still open may take a few positions."""


class TokenFitting:
    """A number of tokens is the limit, if there is one; all of it as lm-eval's own models do.

    Contexts are as long as they may be.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit

    def prompt(self, context: list[int], max_new_tokens: int) -> list[int]:
        """The end of a context that leaves room for new tokens; ValueError where none does."""
        if self._limit is None:
            return context
        if max_new_tokens >= self._limit:
            raise ValueError(
                f"max_gen_toks must leave room for context: the models read {self._limit} "
                f"tokens, got {max_new_tokens}"
            )
        return context[-(self._limit - max_new_tokens) :]

    def windows(self, symbols: list[int], prefix: int) -> list[Split]:
        """A text that follows `prefix`, every symbol scored once, in pieces with a context each."""
        windows = get_rolling_token_windows(
            token_list=symbols,
            prefix_token=prefix,
            max_seq_len=self._limit or len(symbols) + 1,
            context_len=1,
        )
        return [make_disjoint_window(window) for window in windows]

    def scored(self, context: list[int], continuation: list[int]) -> list[int]:
        """The end of a context that fits with its continuation, whose last symbol is not read.

        Raises ValueError where the continuation leaves no room for any context.
        """
        if self._limit is None:
            return context
        if len(continuation) > self._limit:
            raise ValueError(
                f"a continuation of {len(continuation)} tokens leaves no room for context: "
                f"the models read {self._limit} tokens"
            )
        return context[-(self._limit + 1 - len(continuation)) :]


class ByteFitting:
    """The same of bytes: each model's own tokens are the limit, a text is counted by both
    tokenizers, and cuts are between characters."""

    def __init__(self, level: Level) -> None:
        self._level = level

    def prompt(self, context: list[int], max_new_tokens: int) -> list[int]:
        num_new = self._level.horizon(max_new_tokens, None)
        try:  # every new byte a token: a text that outgrows a model would end the evaluation
            return self._end_of(context, [], BYTES_PER_TOKEN * num_new)
        except ValueError:
            return self._end_of(context, [], num_new)

    def windows(self, symbols: list[int], prefix: int) -> list[Split]:
        windows: list[Split] = []
        starts = [*_character_starts(symbols), len(symbols)]
        context, first = [prefix], 0  # of the characters, not of the bytes
        while first < len(starts) - 1:
            ends = starts[first + 1 :]
            num_fitting = bisect_left(
                ends, True, key=lambda end: not self._fits(context, symbols[starts[first] : end])
            )
            if not num_fitting:
                raise ValueError("the models read too few tokens for a single character")
            first += num_fitting
            windows.append((context, symbols[starts[first - num_fitting] : starts[first]]))
            context = symbols[starts[first - 1] : starts[first]]
        return windows

    def scored(self, context: list[int], continuation: list[int]) -> list[int]:
        return self._end_of(context, continuation, SPARE_BYTES)

    def _end_of(self, context: list[int], continuation: list[int], num_new: int) -> list[int]:
        """The longest end of a context that fits."""
        if self._fits(context, continuation, num_new):
            return context
        starts = _character_starts(context)
        cut = bisect_left(
            starts, True, key=lambda start: self._fits(context[start:], continuation, num_new)
        )
        if cut == len(starts):
            raise ValueError(
                "no room is left for context: " + self._level.too_long(continuation, num_new)
            )
        return context[starts[cut] :]

    def _fits(
        self, context: list[int], continuation: list[int], num_new: int = SPARE_BYTES
    ) -> bool:
        """Counted as a whole text, and as the decoder does before it reads the continuation."""
        too_long = self._level.too_long
        return not (
            too_long([*context, *continuation], num_new)
            or (continuation and too_long(context, len(continuation)))
        )


def _character_starts(symbols: Sequence[int]) -> list[int]:
    """Places at which a character of UTF-8 begins."""
    return [place for place, byte in enumerate(symbols) if byte & 0xC0 != 0x80]
