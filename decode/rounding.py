"""How far two honest runs of one model differ, and what of that reaches a divergence or a draw."""

import torch
from torch import Tensor

# V symbols. A deviation is a standard deviation.

LOGIT_DEVIATION = {
    torch.float64: 1.5,
    torch.float32: 8.0,
    torch.float16: 1.0,
    torch.bfloat16: 1.0,
}
"""Of a logit between two batch shapes, in units of the dtype's epsilon times the largest logit.

Measured on the CPU: 16 prompts of mixed lengths decoded together and replayed alone, tiny Llamas of
2 and 3 layers, 600 steps each at temperatures 0.7 and 0.1. Errors of a token's log p_s in these
units, root mean square and largest: float64 0.5, 2.6; float32 2.3, 12.8; float16 0.3, 1.8; bfloat16
0.2, 1.4. With 12 and 16 layers of width 256, bfloat16: 0.6, 2.3. Sums over a law add up as those of
independent errors do: a CDF moved by 1.2 times what that predicts, a divergence by 1.2."""

NUM_DEVIATIONS = 4.0
"""What still counts as rounding: 1.7 to 3 times the largest error measured."""

ARITHMETIC = 2.5e-10
"""Deviation in nats, or of a uniform, that exact logits leave: sums in another order, and the grid
of spends (2**-32)."""

CARRYING_GAP = 64.0
"""Nats below the largest logit beyond which a logit bears no mass that matters (e**-64), as
those of masks, and its own rounding is of no interest."""


def logit_deviation(logits: Tensor, dtype: torch.dtype) -> float:
    """Deviation of one row of warped logits (V,) that a model of this dtype gave.

    Warped, for a temperature divides the rounding like the logit.
    """
    carrying = logits[logits >= logits.max() - CARRYING_GAP]
    largest = carrying.abs().max().item()
    return ARITHMETIC + LOGIT_DEVIATION[dtype] * torch.finfo(dtype).eps * largest
