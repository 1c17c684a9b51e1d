"""All steps of a text together: what each may be off by, their sums may not."""

import math
from types import SimpleNamespace

import pytest

from anchored.decode.verify.text_check import sums_apart


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
    step = SimpleNamespace(nats=1.0, nats_by=1.0, slack=1.5)
    failure = sums_apart(spends, [step] * len(spends))
    assert steps in failure and bool(failure) == bool(steps)
