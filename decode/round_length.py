"""How many tokens a step on the device drafts: a given number, or the one that pays best."""

from collections.abc import Sequence

LENGTHS = (0, 1, 2, 4, 8)
"""Draft lengths among which "auto" chooses, each a CUDA graph of its own; 0 is plain decoding."""

PRIOR_KEPT, PRIOR_SEEN = 6.0, 10.0
"""Before anything was drawn."""

DECAY = 0.8
"""Of the weight of what one look at the device tells by the next: texts change."""


class RoundLength:
    """Chooses the draft length of the steps up to the next look of the host.

    A draft is kept as often as a token that was drawn is the safe model's own, drafted or not. So
    with share a kept a step of g drafts is expected to give 1 + a + ... + a^g tokens, and its time
    is measured: each length is tried once, then the one with most tokens a second.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = tuple(lengths)
        self._kept, self._seen = PRIOR_KEPT, PRIOR_SEEN
        self._step_s: dict[int, float] = {}

    @property
    def longest(self) -> int:
        return max(self.lengths)

    def chosen(self) -> int:
        """The length of the next steps."""
        for length in self.lengths:
            if length not in self._step_s:
                return length
        return max(self.lengths, key=self._tokens_per_s)

    def took(self, length: int, step_s: float, *, num_kept: int, num_drawn: int) -> None:
        """Steps took so many seconds each; `num_kept` of the tokens were the safe model's own."""
        old_s = self._step_s.get(length, step_s)
        self._step_s[length] = DECAY * old_s + (1.0 - DECAY) * step_s
        self._kept = DECAY * self._kept + num_kept
        self._seen = DECAY * self._seen + num_drawn

    def _tokens_per_s(self, length: int) -> float:
        kept = self._kept / self._seen
        return sum(kept**place for place in range(length + 1)) / self._step_s[length]
