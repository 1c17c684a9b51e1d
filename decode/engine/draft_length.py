"""How far the safe model drafts before the risky one verifies: fixed, or what it is worth."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

LONGEST = 16
"""Most tokens of a draft by worth: hardly ever is one more kept."""

EXPLORED = (1, 0, 4, 0, 2, 0, 1, 0, 4, 0, 2, 0)
"""Lengths of the first drafts, from which the price of a verified token is learnt; 0 is plain."""

RETRIED = 16
"""Rounds after which the other of drafting and plain decoding has a turn."""

NUM_BINS = 10
PRIOR_WEIGHT = 4.0
PRIOR_SLOPE = 0.6
"""Before anything is known a draft is kept with probability 1 - slope * u2, as if seen so often."""

DECAY = 0.95
"""Of the weight of a round's times by the next round: machines are shared and texts change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundTimes:
    """What a round took, in seconds of the wall clock, and what it gave."""

    num_columns: int
    """Drafted columns, a safe forward each; 0 in a plain round."""
    draft_s: float
    num_verified: int
    """Tokens of all rows in the risky forward."""
    verify_s: float
    num_new: int
    """Tokens that the round gave to all rows."""


class DraftLength(Protocol):
    """Decides, a column at a time; whatever it decides changes the speed and no token."""

    @property
    def longest(self) -> int:
        """Most tokens of a draft."""
        ...

    def begins(self) -> bool:
        """Whether the next round drafts at all."""
        ...

    def goes_on(self, drafts: Sequence[Sequence[float]]) -> bool:
        """Whether rows draft another token; for each the u2 of what it has drafted."""
        ...

    def was_kept(self, u2: float, kept: bool) -> None:
        """A drafted token was verified."""
        ...

    def took(self, times: RoundTimes) -> None:
        """A round is over."""
        ...


class FixedLength:
    """Always the same number of tokens."""

    def __init__(self, longest: int) -> None:
        self.longest = longest

    def begins(self) -> bool:
        return True

    def goes_on(self, drafts: Sequence[Sequence[float]]) -> bool:
        return True

    def was_kept(self, u2: float, kept: bool) -> None:
        """Nothing to learn."""

    def took(self, times: RoundTimes) -> None:
        """Nothing to learn."""


class LengthByWorth:
    """Drafts on while the tokens that are expected of it are worth its time.

    Another draft takes a safe forward (which is due anyway if all before it are kept) and one more
    verified token. It gives a token if it and all before it are kept, and a token is worth the mean
    time of one. How often drafts are kept is learnt by u2: one is kept if u2 < p*/p_s, and u2 is
    known beforehand. Where plain rounds have given their tokens in less time, rounds are plain.
    """

    longest = LONGEST

    def __init__(self) -> None:
        middles = [(place + 0.5) / NUM_BINS for place in range(NUM_BINS)]
        self._kept = [PRIOR_WEIGHT * (1.0 - PRIOR_SLOPE * middle) for middle in middles]
        self._seen = [PRIOR_WEIGHT] * NUM_BINS
        self._safe, self._verify, self._round, self._plain = (_Line() for _ in range(4))
        self._num_rounds = 0

    @property
    def safe_s(self) -> float:
        """Mean seconds of a drafted column."""
        return self._safe.ratio

    @property
    def verified_s(self) -> float:
        """Seconds that each further token adds to a risky forward."""
        return self._verify.slope

    def begins(self) -> bool:
        if self._num_rounds < len(EXPLORED):
            return EXPLORED[self._num_rounds] > 0
        is_drafting = self._round.ratio < self._plain.ratio
        return is_drafting != (self._num_rounds % RETRIED == 0)

    def goes_on(self, drafts: Sequence[Sequence[float]]) -> bool:
        if self._num_rounds < len(EXPLORED):
            return max(map(len, drafts)) < EXPLORED[self._num_rounds]
        chances = [math.prod(map(self._chance, u2s)) for u2s in drafts]
        due_anyway = sum(chances) / len(chances)
        price_s = self.safe_s * (1.0 - due_anyway) + self.verified_s * len(drafts)
        num_expected = sum(chances) * sum(self._kept) / sum(self._seen)
        return num_expected * min(self._round.ratio, self._plain.ratio) > price_s

    def was_kept(self, u2: float, kept: bool) -> None:
        place = int(u2 * NUM_BINS)
        self._seen[place] += 1.0
        self._kept[place] += kept

    def took(self, times: RoundTimes) -> None:
        if not times.num_verified:
            return  # the budget was 0: such tokens say nothing about those to come
        self._num_rounds += 1
        if not times.num_columns:
            self._plain.add(times.num_new, times.verify_s)
            return
        self._safe.add(times.num_columns, times.draft_s)
        self._verify.add(times.num_verified, times.verify_s)
        self._round.add(times.num_new, times.draft_s + times.verify_s)

    def _chance(self, u2: float) -> float:
        place = int(u2 * NUM_BINS)
        return self._kept[place] / self._seen[place]


class _Line:
    """Seconds y against counts x, by decaying least squares."""

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, x: float, y: float) -> None:
        sums = (self._weight, self._x, self._y, self._xx, self._xy)
        new = (1.0, x, y, x * x, x * y)
        self._weight, self._x, self._y, self._xx, self._xy = (
            DECAY * old + more for old, more in zip(sums, new, strict=True)
        )

    @property
    def ratio(self) -> float:
        """Seconds per count."""
        return self._y / self._x if self._x else 0.0

    @property
    def slope(self) -> float:
        """Seconds that one more count adds, at least 0 and at most the ratio."""
        spread = self._weight * self._xx - self._x**2
        if spread <= 1e-9 * self._xx * self._weight:
            return self.ratio
        rise = (self._weight * self._xy - self._x * self._y) / spread
        return min(max(rise, 0.0), self.ratio)


LENGTHS = (0, 1, 2, 4, 8)
"""Draft lengths among which "auto" chooses, each a CUDA graph of its own; 0 is plain decoding."""

PRIOR_KEPT, PRIOR_SEEN = 6.0, 10.0
"""Before anything was drawn."""

LOOK_DECAY = 0.8
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
        self._step_s[length] = LOOK_DECAY * old_s + (1.0 - LOOK_DECAY) * step_s
        self._kept = LOOK_DECAY * self._kept + num_kept
        self._seen = LOOK_DECAY * self._seen + num_drawn

    def _tokens_per_s(self, length: int) -> float:
        kept = self._kept / self._seen
        return sum(kept**place for place in range(length + 1)) / self._step_s[length]
