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

# 14 kinds x 2 dtypes x (8 sizes x 42 rows + 4,001 x 16 + 128,256 x 9) = 10,108 cases.
SIZES = [(size, 42) for size in (1, 2, 3, 5, 17, 64, 257, 1000)] + [(4001, 16), (128256, 9)]
