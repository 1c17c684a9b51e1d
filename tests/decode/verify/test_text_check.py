"""All steps of a text together: what each may be off by, their sums may not."""

import math

import pytest

from anchored.decode.verify.step_check import StepReport
from anchored.decode.verify.text_check import sums_apart


def reports(tolerance: float, slack: float, count: int) -> list[StepReport]:
    """Steps whose charge is 1 nat."""
    report = StepReport(
        failures=[],
        rounding=0.0,
        chance=0.0,
        gain=0.0,
        spread=0.0,
        divergence=1.0,
        tolerance=tolerance,
        slack=slack,
        steepness=(0.0, 0.0),
    )
    return [report] * count


@pytest.mark.parametrize(
    ("errors", "steps"),
    [
        ([0.45] * 4, ""),
        ([0.625] * 4, "divergence 3.0 nats in steps 0 to 2, spent 1.125"),
        # What is too much before or after does not make up for what is missing.
        ([-3.0] + [0.625] * 3, "in steps 1 to 3, spent 1.125"),
        ([0.625] * 3 + [-3.0], "in steps 0 to 2, spent 1.125"),
        ([0.9, -0.9, 0.9, -0.9], ""),
        ([0.0, 1.1, -2.0], "in steps 1 to 1, spent -0.1"),
        # More than the replay says is harmless, up to the slack.
        ([-1.9] * 4, ""),
        ([-2.1] * 4, "divergence 4.0 nats, spent 12.4"),
        ([math.nan], "divergence 1.0 nats in steps 0 to 0, spent nan"),
    ],
)
def test_no_run_of_steps_spent_less_than_rounding_explains(errors, steps):
    spends = [1.0 - error for error in errors]
    failure = sums_apart(spends, reports(1.0, 1.5, len(spends)))
    assert steps in failure and bool(failure) == bool(steps)
