"""Whether and how far a decoder speculates."""

import logging

from .choices import Speculate
from .draft_length import DraftLength, FixedLength, LengthByWorth
from .level import Level
from .round_length import LENGTHS
from .rules.rule import Rule
from .sampling_config import SamplingConfig
from .speculation_refusal import speculation_refusal
from .speculative_batch import SpeculativeBatch

logger = logging.getLogger(__name__)


class Speculation:
    """Opens speculative batches of one decoder, which share what is learnt about drafts."""

    def __init__(self, level: Level, rule: Rule, length: DraftLength) -> None:
        self.level, self.rule, self.length = level, rule, length

    @classmethod
    def of(cls, level: Level, rule: Rule, speculate: Speculate) -> "Speculation | None":
        """None for "off", and, with one log line, for "auto" where the pair cannot speculate.

        Raises ValueError for another value, and for a number where the pair cannot speculate.
        """
        if speculate == "off":
            return None
        if speculate != "auto" and (type(speculate) is not int or speculate < 1):
            raise ValueError(f'speculate must be "auto", "off" or >= 1, got {speculate!r}')
        refusal = speculation_refusal(level)
        if not refusal:
            length = LengthByWorth() if speculate == "auto" else FixedLength(int(speculate))
            return cls(level, rule, length)
        if speculate != "auto":
            raise ValueError(f"speculate={speculate} cannot run here: {refusal}")
        logger.warning("decoding without speculation: %s", refusal)
        return None

    @property
    def device_lengths(self) -> tuple[int, ...]:
        """Draft lengths of steps on the device."""
        return (self.length.longest,) if isinstance(self.length, FixedLength) else LENGTHS

    def fits(self, max_length: int) -> bool:
        """Whether rows of up to this many tokens can speculate; for "auto" a log line if not.

        Raises ValueError where a draft of a fixed length does not fit.
        """
        longest = self.length.longest
        if self.level.rows_can_join(max_length + longest):
            return True
        refusal = f"rows of {max_length} tokens and drafts of {longest} exceed the models' reach"
        if isinstance(self.length, FixedLength):
            raise ValueError(f"speculate={longest} cannot run here: {refusal}")
        logger.warning("decoding without speculation: %s", refusal)
        return False

    def open(self, sampling: SamplingConfig, *, num_rows: int, max_length: int) -> SpeculativeBatch:
        """An empty batch of `num_rows` rows of up to `max_length` tokens."""
        return SpeculativeBatch(
            self.level,
            self.rule,
            sampling,
            num_rows=num_rows,
            max_length=max_length,
            length=self.length,
        )
