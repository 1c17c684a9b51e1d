"""How far the safe model drafts before the risky one verifies: as far as it has been worth."""

from collections.abc import Sequence

LENGTHS = (0, 1, 2, 4, 8)
"""Draft lengths among which "auto" chooses, on the device each a CUDA graph of its own; 0 is plain
decoding. Longer drafts are hardly ever kept whole."""

PRIOR_KEPT, PRIOR_SEEN = 6.0, 10.0
"""Before anything was drawn."""

DECAY = 0.8
"""Of the weight of what one look tells by the next: machines are shared and texts change."""

RETRIED = 32
"""Looks after which the length that was left alone for longest has a turn: a retry of the longest
costs a few safe forwards, so all of them together stay below a twentieth of the time."""


class DraftLength:
    """Chooses the draft length up to the next look: a round of the host, or steps on the device.

    A draft is kept as often as a token that was drawn is the safe model's own, drafted or not. So
    with share a kept a round of g drafts is expected to give 1 + a + ... + a^g tokens, and its time
    is measured: each length is tried once, then the one with most tokens a second. Whatever is
    chosen changes the speed and no token.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        """lengths: one, or those to choose from."""
        self.lengths = tuple(lengths)
        self._kept, self._seen = PRIOR_KEPT, PRIOR_SEEN
        self._round_s: dict[int, float] = {}
        """By length, the one that was taken last at the end."""
        self._num_looks = 0

    @property
    def longest(self) -> int:
        """Most tokens of a draft."""
        return max(self.lengths)

    @property
    def is_fixed(self) -> bool:
        """Whether there is no choice."""
        return len(self.lengths) == 1

    def chosen(self) -> int:
        """The length of the next drafts."""
        for length in self.lengths:
            if length not in self._round_s:
                return length
        if self._num_looks % RETRIED == 0:
            return next(iter(self._round_s))
        return max(self.lengths, key=self._tokens_per_s)

    def took(self, length: int, round_s: float, *, num_kept: int, num_drawn: int) -> None:
        """Rounds took so many seconds each; `num_kept` of the tokens were the safe model's own."""
        old_s = self._round_s.pop(length, round_s)
        self._round_s[length] = DECAY * old_s + (1.0 - DECAY) * round_s
        self._kept = DECAY * self._kept + num_kept
        self._seen = DECAY * self._seen + num_drawn
        self._num_looks += 1

    def _tokens_per_s(self, length: int) -> float:
        kept = self._kept / self._seen
        return sum(kept**place for place in range(length + 1)) / self._round_s[length]
