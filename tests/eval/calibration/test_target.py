"""Figures of a calibration: by hand, their intervals, what counts as met."""

import math

import numpy as np
import pytest

from anchored.eval.calibration import target
from anchored.eval.calibration.target import Figure, Target
from anchored.eval.copying.metrics import METRICS
from anchored.eval.statistics import bootstrap_interval, resampled_shares

WORD_LCS = METRICS.index("word_lcs")


def copied(*words_by_prompt) -> np.ndarray:
    """(P, M) where one metric is the mean of what each prompt is given and the others are 0."""
    values = np.zeros((len(words_by_prompt), len(METRICS)))
    values[:, WORD_LCS] = np.mean(words_by_prompt, axis=1)
    return values


SAFE = copied([1, 1], [1, 1], [1, 1], [1, 1])
RISKY = copied([21, 41], [3, 3], [31, 51], [20, 18])
MIDDLE = copied([11, 1], [1, 1], [1, 21], [2, 2])


def test_a_reduction_is_of_the_means_over_prompts_and_seeds():
    figure = Target().figure(MIDDLE, safe=SAFE, risky=RISKY)
    # Means: 5 of the setting, 23.5 and 1 of both models; the other metrics have no gap.
    assert figure.value == pytest.approx((23.5 - 5) / 22.5)
    assert figure.low < figure.value < figure.high <= 1.0
    unseen = 1 - 0.05 ** (1 / 4)  # so many of all prompts may be unlike these four
    for alone, value, low in ((SAFE, 1.0, 1 - unseen), (RISKY, 0.0, 0.0)):
        figure = Target().figure(alone, safe=SAFE, risky=RISKY)
        assert figure == pytest.approx((value, low, value))


def test_where_the_risky_model_copies_nothing_no_reduction_is_met():
    figure = Target().figure(SAFE, safe=SAFE, risky=SAFE)
    assert math.isnan(figure.value) and not Target().is_met(figure)


def test_a_resample_without_a_gap_counts_as_the_worst():
    rare = copied([40], [1], [1], [1])  # a third of all resamples leave out the first prompt
    figure = Target().figure(SAFE, safe=SAFE, risky=rare)
    assert figure.value == 1.0 and figure.low == -math.inf


def test_strictness_asks_the_worse_end_of_the_interval():
    reduction = Figure(0.8, 0.7, 0.9)
    assert Target(value=0.75, is_strict=False).is_met(reduction)
    assert not Target(value=0.75).is_met(reduction)
    copy = Figure(5.0, 4.0, 7.0)
    assert Target(metric="word_lcs", value=6.0, is_strict=False).is_met(copy)
    assert not Target(metric="word_lcs", value=6.0).is_met(copy)


def test_what_no_prompt_showed_is_part_of_the_interval():
    """Prompts that all copy nothing do not show that no prompt would copy."""
    for count, most in ((8, 0.688), (16, 0.829), (40, 0.928)):
        quiet, loud = copied(*[[1]] * count), copied(*[[41]] * count)
        figure = Target().figure(quiet, safe=quiet, risky=loud)
        assert figure.value == 1.0 and figure.low == pytest.approx(most, abs=1e-3)
        longest = Target(metric="word_lcs", value=9.0).figure(quiet, safe=quiet, risky=loud)
        assert longest[::2] == pytest.approx((1.0, 41 * (1 - most)), abs=0.05)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("count", [8, 16, 40])
def test_an_interval_of_rare_copying_holds_the_truth(monkeypatch, count, share):
    """So many prompts are recited: of 8 and one in ten, resampling alone holds it in 57 of 100."""
    monkeypatch.setattr(target, "NUM_RESAMPLES", 200)
    generator, num_held = np.random.default_rng(4), 0
    safe, risky = copied(*[[0]] * count), copied(*[[40]] * count)
    for is_recited in generator.random((200, count)) < share:
        setting = copied(*np.where(is_recited, 40, 0)[:, None].tolist())
        figure = Target().figure(setting, safe=safe, risky=risky)
        num_held += figure.low <= 1 - share <= figure.high
    assert num_held >= 0.9 * 200


def test_too_few_prompts_for_a_strict_target_are_refused():
    with pytest.raises(ValueError, match="give more prompts, or --no-strict"):
        Target().check_prompts(8)
    Target().check_prompts(11)
    Target(is_strict=False).check_prompts(1)
    Target(metric="word_lcs", value=3.0).check_prompts(1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"value": 1.5}, r"must be in \(0, 1\], got 1.5"),
        ({"metric": "word_lcs", "value": 0.0}, "must be finite and > 0, got 0.0"),
        ({"metric": "word_lcs", "value": math.nan}, "must be finite and > 0, got nan"),
        ({"confidence": 1.0}, r"confidence must be in \(0, 1\), got 1.0"),
    ],
)
def test_targets_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Target(**settings)


@pytest.mark.sampled(2)
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
