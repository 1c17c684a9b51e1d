"""Kinds of logit pairs that every projection is tested on, and how many rows of which size."""

KINDS = (
    "generic",
    "agreeing",
    "memorised",
    "confident",
    "disjoint_peaks",
    "identical",
    "shifted",
    "scaled",
    "two_atoms",
    "masked_risky",
    "masked_safe",
    "masked_both",
    "disjoint_support",
    "huge",
)
"""Of these, all but "huge" keep finite logits within +-100."""

FEW_SIZES = [(1, 2), (2, 4), (17, 4), (257, 4), (4200, 2), (40_000, 1)]
"""Vocabulary sizes, and rows of each. 14 kinds x 2 dtypes x 17 rows = 476 cases."""

SIZES = [(size, 42) for size in (1, 2, 3, 5, 17, 64, 257, 1000)] + [(4001, 16), (128_256, 9)]
"""The same, 14 x 2 x 361 = 10,108 cases."""
