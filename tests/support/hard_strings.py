"""Short strings that split in odd places, for tokenizers and tries."""

import random

_HARD = (
    *"    \t\n\r\u00a0\u3000''sStTrReElLdaAbX09.!/-\u4e2d\u65e5\u00e9\u0301\u02b0\u01c5\u0663",
    *("'re", "'LL", "  ", "\n\n", "\u017f", "\U0001f600", "\U0001f44d\U0001f3fd", "\u200d"),
)
"""White space, line ends, apostrophes, combining marks, CJK, digits, emoji."""


def draw_hard_strings(number: int, *, seed: int, longest: int = 12) -> list[str]:
    """`number` strings of one to `longest` of these, the same ones for a seed."""
    source = random.Random(seed)
    return ["".join(source.choices(_HARD, k=source.randint(1, longest))) for _ in range(number)]
