"""Texts that fit into the models: contexts cut at the left, long texts cut into windows."""

from bisect import bisect_left
from collections.abc import Sequence

from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from ...decode.levels.level import Level

Split = tuple[list[int], list[int]]
"""Symbols of a context, and of the continuation that is scored after it."""

SPARE_BYTES = 32
"""Symbols added to every text at byte level: open tokens may take a few positions."""


class Fitting:
    """Texts of a level and the models' contexts.

    Tokens are cut as in lm-eval's models. Bytes, which each model reads as its tokens, are cut
    between characters.
    """

    def __init__(self, level: Level) -> None:
        self._level = level
        self._deals_in_bytes = level.name == "byte"

    def prompt(self, context: list[int], max_new_tokens: int) -> list[int]:
        """The longest end of a context that leaves room for new tokens; ValueError without one.

        At byte level every new byte may be a token, as a text that outgrows a model would end the
        evaluation; if that leaves no room, they are counted as in `Decoder.generate`.
        """
        num_new = self._level.horizon(max_new_tokens, None)
        for number in (num_new * self._level.symbols_per_token, num_new):
            if (end := self._end_of(context, [], number)) is not None:
                return end
        raise ValueError(
            f"max_gen_toks must leave room for context, got {max_new_tokens}: "
            f"{self._problem(context[-1:], [], num_new)}"
        )

    def scored(self, context: list[int], continuation: list[int]) -> list[int]:
        """The longest end of a context that fits with its continuation.

        Raises ValueError if the continuation leaves no room for any context.
        """
        # The last token that is scored is not read.
        more = SPARE_BYTES if self._deals_in_bytes else -1
        if (end := self._end_of(context, continuation, more)) is not None:
            return end
        raise ValueError(
            f"a continuation of {len(continuation)} {self._level.name}s leaves no room for "
            f"context: {self._problem(context[-1:], continuation, more)}"
        )

    def windows(self, symbols: list[int], prefix: int) -> list[Split]:
        """A text that follows `prefix`, every symbol scored once, in pieces with a context each."""
        if self._deals_in_bytes:
            return self._byte_windows(symbols, prefix)
        windows = get_rolling_token_windows(
            token_list=symbols,
            prefix_token=prefix,
            max_seq_len=self._level.context_length or len(symbols) + 1,
            context_len=1,
        )
        return [make_disjoint_window(window) for window in windows]

    def _byte_windows(self, symbols: list[int], prefix: int) -> list[Split]:
        windows: list[Split] = []
        starts = [*self._starts(symbols), len(symbols)]
        context, first = [prefix], 0  # of the characters, not of the bytes
        while first < len(starts) - 1:
            ends = starts[first + 1 :]
            num_fitting = bisect_left(
                ends,
                True,
                key=lambda end: bool(
                    self._problem(context, symbols[starts[first] : end], SPARE_BYTES)
                ),
            )
            if not num_fitting:
                raise ValueError("the models read too few tokens for a single character")
            first += num_fitting
            windows.append((context, symbols[starts[first - num_fitting] : starts[first]]))
            context = symbols[starts[first - 1] : starts[first]]
        return windows

    def _end_of(self, context: list[int], continuation: list[int], more: int) -> list[int] | None:
        """The longest end of a context that fits; None if no symbol does."""
        starts = self._starts(context) or [0]
        cut = bisect_left(
            starts, True, key=lambda start: not self._problem(context[start:], continuation, more)
        )
        return context[starts[cut] :] if cut < len(starts) else None

    def _problem(self, context: list[int], continuation: list[int], more: int) -> str:
        """The reason for which a context does not fit, "" if it does.

        It is counted as a whole text with `more` symbols, and as by the decoder before the
        continuation.
        """
        too_long = self._level.too_long
        return too_long([*context, *continuation], more) or (
            too_long(context, len(continuation) - 1) if continuation else ""
        )

    def _starts(self, symbols: Sequence[int]) -> list[int]:
        """Indices at which a text may be cut: before any token, before a character of UTF-8."""
        return [
            index
            for index, symbol in enumerate(symbols)
            if not self._deals_in_bytes or symbol & 0xC0 != 0x80
        ]
