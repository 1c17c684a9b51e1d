"""Figures of a calibration: by hand, their intervals, what counts as met."""

import math

import numpy as np
import pytest

from anchored.eval.calibration.target import Figure, Target
from anchored.eval.copying.metrics import METRICS
from anchored.eval.statistics import bootstrap_interval, resampled_shares

WORD_LCS = METRICS.index("word_lcs")


def copied(*words_by_prompt) -> np.ndarray:
    """(P, S, M) where one metric is what is given and the others are 0."""
    values = np.zeros((len(words_by_prompt), len(words_by_prompt[0]), len(METRICS)))
    values[..., WORD_LCS] = words_by_prompt
    return values


SAFE = copied([1, 1], [1, 1], [1, 1], [1, 1])
RISKY = copied([21, 41], [3, 3], [31, 51], [20, 18])
MIDDLE = copied([11, 1], [1, 1], [1, 21], [2, 2])


def test_a_reduction_is_of_the_means_over_prompts_and_seeds():
    figure = Target().figure(MIDDLE, safe=SAFE, risky=RISKY)
    # Means: 5 of the setting, 23.5 and 1 of both models; the other metrics have no gap.
    assert figure.value == pytest.approx((23.5 - 5) / 22.5)
    assert figure.low < figure.value < figure.high <= 1.0
    for alone, value in ((SAFE, 1.0), (RISKY, 0.0)):
        assert Target().figure(alone, safe=SAFE, risky=RISKY)[:2] == pytest.approx((value, value))


def test_a_mean_copy_needs_neither_model():
    figure = Target(metric="word_lcs", value=6.0).figure(MIDDLE, safe=SAFE, risky=MIDDLE)
    assert figure.value == pytest.approx(5.0) and figure.low < 5.0 < figure.high


def test_where_the_risky_model_copies_nothing_no_reduction_is_met():
    figure = Target().figure(SAFE, safe=SAFE, risky=SAFE)
    assert math.isnan(figure.value) and not Target().is_met(figure)


def test_a_resample_without_a_gap_counts_as_the_worst():
    rare = copied([40], [1], [1], [1])  # a third of all resamples leave out the first prompt
    one_seed = SAFE[:, :1]
    figure = Target().figure(one_seed, safe=one_seed, risky=rare)
    assert figure.value == 1.0 and figure.low == -math.inf


def test_strictness_asks_the_worse_end_of_the_interval():
    reduction = Figure(0.8, 0.7, 0.9)
    assert Target(value=0.75).is_met(reduction)
    assert not Target(value=0.75, is_strict=True).is_met(reduction)
    copy = Figure(5.0, 4.0, 7.0)
    assert Target(metric="word_lcs", value=6.0).is_met(copy)
    assert not Target(metric="word_lcs", value=6.0, is_strict=True).is_met(copy)


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("value", [0.5, 0.81, 0.9])
def test_generations_meet_what_their_figure_meets(is_strict, value):
    both, target = {"safe": SAFE, "risky": RISKY}, Target(value=value, is_strict=is_strict)
    assert target.is_met_by(MIDDLE, **both) == target.is_met(target.figure(MIDDLE, **both))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "rouge"}, "metric must be one of ncr, word_lcs"),
        ({"value": 1.5}, r"must be in \(0, 1\], got 1.5"),
        ({"metric": "word_lcs", "value": 0.0}, "must be finite and > 0, got 0.0"),
        ({"metric": "word_lcs", "value": math.nan}, "must be finite and > 0, got nan"),
        ({"confidence": 1.0}, r"confidence must be in \(0, 1\), got 1.0"),
    ],
)
def test_targets_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Target(**settings)


def test_resamples_are_shares_and_the_same_for_a_seed():
    shares = resampled_shares(5, num_resamples=400)
    assert np.allclose(shares.sum(1), 1.0) and shares.shape == (400, 5)
    assert np.array_equal(shares, resampled_shares(5, num_resamples=400))
    assert shares.mean(0) == pytest.approx(np.full(5, 0.2), abs=0.03)


@pytest.mark.parametrize("count", [8, 16])
def test_intervals_hold_the_true_mean_as_often_as_they_say(count):
    generator = np.random.default_rng(3)
    shares = resampled_shares(count, num_resamples=600)
    num_held = 0
    for values in generator.normal(size=(400, count)):
        low, high = bootstrap_interval(shares @ values, count=count, confidence=0.9)
        num_held += low <= 0.0 <= high
    # Plain percentiles hold it in 82 and 86 of 100; 360 are expected, with a deviation of 6.
    assert num_held == pytest.approx(360, abs=18)


def test_a_single_prompt_says_nothing_of_others():
    assert bootstrap_interval(np.ones(9), count=1, confidence=0.95) == (-math.inf, math.inf)
