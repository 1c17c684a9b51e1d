"""Loss spikes: which steps are, and how the guard answers."""

import math

import pytest

from anchored import AnchoredError
from anchored.pretrain.job_config import SpikeGuardConfig
from anchored.pretrain.run.spikes import Spike, SpikeGuard


def guard(losses=(), **settings):
    one = SpikeGuard(SpikeGuardConfig(**{"window": 4, "action": "skip", **settings}))
    assert [one.check(loss, 1.0) for loss in losses] == [None] * len(losses)
    return one


@pytest.mark.parametrize(
    ("losses", "limit"),
    [
        ([2.0, 3.0, 3.0, 4.0], 3 + 6 * math.sqrt(0.5)),  # six deviations above the mean
        ([2.0] * 4, 2.2),  # over a flat curve at least 0.2
    ],
)
def test_a_loss_far_above_the_window_is_a_spike(losses, limit):
    assert guard(losses).check(limit - 0.01, 1.0) is None
    spike = guard(losses).check(limit + 0.01, 1.0)
    assert spike == Spike(limit + 0.01, pytest.approx(limit), 1.0, "skipped")
    assert guard(losses[:3]).check(100.0, 1.0) is None  # before the window is full


def test_a_spike_does_not_hide_the_next_one_and_a_level_that_stays_is_accepted():
    watch = guard([2.0] * 4)
    assert [watch.check(50.0, 1.0).loss for _ in range(2)] == [50.0, 50.0]
    watch = guard([2.0] * 4, action="log")
    spikes = [watch.check(2.5, 1.0) for _ in range(12)]
    assert spikes[0] is not None and spikes[-1] is None


@pytest.mark.parametrize("action", ["off", "skip"])
def test_what_is_not_finite_is_refused_in_every_mode_and_three_in_a_row_end_the_run(action):
    watch = guard([2.0] * 4, action=action)
    for figures in [(math.nan, 1.0), (2.0, math.inf), (2.0, 1.0), (math.inf, 1.0), (2.0, math.nan)]:
        spike = watch.check(*figures)
        assert spike is None if figures == (2.0, 1.0) else spike.action == "refused"
        watch.end_if_lost(7)
    watch.check(2.0, math.inf)
    with pytest.raises(
        AnchoredError, match="3 steps up to step 7 had a loss or gradients that are"
    ):
        watch.end_if_lost(7)


def test_nine_skips_in_a_row_end_the_run():
    watch = guard([2.0] * 4, min_rise_nats=0.0)
    for loss in range(100, 1000, 100):
        watch.end_if_lost(1)
        assert watch.check(100.0 * loss**3, 1.0).action == "skipped"
    with pytest.raises(AnchoredError, match="9 steps up to step 9 were skipped and the loss"):
        watch.end_if_lost(9)


def test_its_state_is_enough_to_go_on():
    one, other = guard([2.0, 3.0, 3.0, 4.0]), guard()
    other.load_state_dict(one.state_dict())
    assert other.check(7.3, 1.0) == one.check(7.3, 1.0) is not None
