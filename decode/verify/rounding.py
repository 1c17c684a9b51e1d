"""Bounds on what rounding does to a ledger's figures: noise of token logits, weighted by mass.

The recorded run and a replay batch one text differently, so they sum in another order and their
logits differ. docs/certificate.md, "Tolerances", has the derivation in words.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

# V symbols. Tolerances are in nats.

ARITHMETIC = 1e-9
"""Nats, or of a uniform: what exact logits leave, by sums in another order and by the grid of
spends."""

LOGIT_TOLERANCE = {
    torch.float64: 128.0,
    torch.float32: 128.0,
    torch.float16: 6.0,
    torch.bfloat16: 6.0,
}
"""The difference of a token's logit between two passes over a text, in units of the dtype's epsilon
times the row's largest logit.

Texts were decoded in ragged batches and replayed alone. The largest errors of log p_s were 59 units
in float32 and 4.5 in half precision, both of 6 and 8 layers with wide initial weights, whose
attention is nearly a choice and passes rounding on enlarged. The wide formats can afford the room:
128 units of float32 are 3e-4 nats of a logit of 20.
"""

OF_QUANTIZED = 2.0
"""Factor of the tolerance of a quantized model's logits: each library undoes small
weights by kernels of its own. Of int4 that vLLM drew and transformers replayed, the largest errors
were 3.5 of its units over 470 steps and 6.1 once; of the same model in bfloat16, 1.9."""

NUM_DEVIATIONS = 4.0
"""Standard deviations of rounding in a tolerance."""

COMMON = 0.18
"""The part of a tolerance that moves one side of an edge against the other however many symbols lie
there: 4 deviations of 0.045, measured in 474 draws of a model of 49,152 tokens in bfloat16 at
temperatures 0.7 and 1.5, the largest of them 0.13. One error of the last hidden state moves the
logits of like tokens alike, and those of one kind often have neighboring numbers."""


def logit_tolerance(largest: float, dtype: torch.dtype, times: float = 1.0) -> float:
    """Nats by which the logits of a row whose largest has this size may differ in two readings.

    dtype: of the model. times: OF_QUANTIZED, or 1.
    """
    return times * (ARITHMETIC + LOGIT_TOLERANCE[dtype] * torch.finfo(dtype).eps * largest)


USUAL_LOGIT = 20.0
"""Nats; about the largest logit of a row of a language model before a temperature divides it."""

MOST_TOLERANCE = 10.0
"""Nats of a logit up to which a replay still tells one distribution from another. Beyond it a token
may be e^10 times as likely as the ledger says, and honest texts begin to be refused too."""


def least_temperature(dtypes: Iterable[torch.dtype]) -> float:
    """The temperature below which rounding of models of these dtypes leaves nothing to verify."""
    units = max(LOGIT_TOLERANCE[dtype] * torch.finfo(dtype).eps for dtype in dtypes)
    return units * USUAL_LOGIT / MOST_TOLERANCE


def temperature_error(temperature: float, least: float) -> str:
    """Why no text at this temperature can be certified, "" where one can: greedy ones are not.

    least: of `least_temperature`.
    """
    if temperature == 0.0 or temperature >= least:
        return ""
    return (
        f"temperature must be at least {least:.2g} for a certified text, got {temperature:g}: "
        "below it the models' rounding, divided by the temperature, hides what was spent"
    )


BENDING = 0.1
"""Nats of a logit above which a figure is no longer straight within its tolerance."""

PARTS = (0.125, 0.25, 0.5, 1.0)
"""Parts of large errors at which a figure is computed: between them it may be larger than where
they lead, as other tokens have the mass there."""


def moved(
    figure: Callable[..., Tensor],
    rows: Sequence[Tensor],
    tolerances: Sequence[float],
    *,
    along: Callable[..., Tensor] | None = None,
) -> float:
    """Nats by which rounding of logits may move a figure that follows from them.

    figure: () float64 of the rows, differentiable. rows: (V,) logits each, or log-weights of
    symbols. tolerances: of one logit of each row. along: a figure whose slope leads where `figure`
    changes most though it is flat here; its own unless given.

    Logits err independently, so of all errors of one size those along the figure's slope move it
    most: a logit counts by the mass that it moves, times what that mass is worth. A divergence has
    p (1 - p) times a log-ratio of it, the log-probability of a token that is nearly certain next to
    none. A part of the error is common to many symbols, and may have the sign of every slope. The
    figure is computed again where these errors lead, both ways, and on the way if they are large.
    """
    with torch.inference_mode(False), torch.enable_grad():
        leaves = [row.detach().double().clone().requires_grad_() for row in rows]
        slopes = torch.autograd.grad((along or figure)(*leaves), leaves)
        nats = figure(*leaves).item()
    if not math.isfinite(nats):
        return 0.0
    errors = _along(slopes, tolerances)
    parts = PARTS if max(tolerances) > BENDING else PARTS[-1:]
    return max(
        abs(figure(*(row.double() + part * e for row, e in zip(rows, errors, strict=True))) - nats)
        for part in (*parts, *(-part for part in parts))
    ).item()


def _along(slopes: Sequence[Tensor], tolerances: Sequence[float]) -> list[Tensor]:
    """The errors of logits that move a figure of these slopes most."""
    pulls = [by * slope for by, slope in zip(tolerances, slopes, strict=True)]
    length = math.hypot(*(pull.norm().item() for pull in pulls)) or 1.0
    return [
        by * (pull / length + COMMON * pull.sign())
        for by, pull in zip(tolerances, pulls, strict=True)
    ]
