"""Power laws whose truth is known are found, and their intervals hold it as often as they say."""

import numpy as np
import pytest
from scipy.stats import t

from anchored.eval.power_law import PowerLaw, predict_loss
from anchored.eval.statistics import student_quantile

SIZES = np.array([20e6, 64e6, 192e6, 591e6])
TARGET = 1.23e9
LAWS = [
    PowerLaw(1.7, 400.0, 0.34),  # Hoffmann et al. 2022, in parameters
    PowerLaw(0.0, 12.0, 0.076),  # Kaplan et al. 2020
    PowerLaw(2.2, 3e4, 0.6),
]


@pytest.mark.parametrize("law", LAWS)
def test_losses_of_a_law_give_the_law(law):
    prediction = predict_loss(SIZES, [law.loss(size) for size in SIZES], TARGET)
    # E and A lie far from the losses, which leave of them what digits leave.
    assert prediction.law.exponent == pytest.approx(law.exponent, rel=1e-4)
    assert prediction.law.scale == pytest.approx(law.scale, rel=2e-3)
    assert prediction.law.irreducible == pytest.approx(law.irreducible, abs=2e-3)
    assert prediction.loss == pytest.approx(law.loss(TARGET), abs=1e-6)
    assert prediction.low <= prediction.loss <= prediction.high < prediction.low + 1e-4
    assert prediction.law.loss(TARGET) == pytest.approx(prediction.loss, abs=1e-9)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("counts", "deviation"), [((1, 1, 1, 1), 0.02), ((2, 2, 1, 1), 0.003)])
def test_nine_intervals_in_ten_hold_the_truth(law, counts, deviation):
    generator = np.random.default_rng(7)
    sizes = np.repeat(SIZES, counts)
    truth, num_held, deviations = law.loss(TARGET), 0, []
    for _ in range(200):
        noise = generator.normal(scale=deviation, size=len(sizes))
        prediction = predict_loss(sizes, law.loss(sizes) + noise, TARGET)
        num_held += prediction.low <= truth <= prediction.high
        deviations.append(prediction.deviation**2)
    # Three standard errors of 200 draws.
    assert num_held / 200 == pytest.approx(0.9, abs=0.064)
    assert np.mean(deviations) == pytest.approx(deviation**2, rel=0.3)


def test_units_of_size_change_nothing_and_more_confidence_is_wider():
    losses = LAWS[0].loss(SIZES) + np.array([0.01, -0.02, 0.015, 0.0])
    one, other = (predict_loss(SIZES * unit, losses, TARGET * unit) for unit in (1.0, 1e-6))
    assert other.loss == pytest.approx(one.loss, abs=1e-12)
    assert (other.low, other.high) == pytest.approx((one.low, one.high), abs=1e-9)
    wide = predict_loss(SIZES, losses, TARGET, confidence=0.99)
    assert wide.low < one.low < one.loss < one.high < wide.high


@pytest.mark.parametrize(
    ("sizes", "losses", "message"),
    [
        ([1, 2, 3], [3.0, 2.0, 1.5], "got 3 of 3"),
        ([1, 1, 2, 2], [3.0, 3.1, 2.0, 2.1], "got 4 of 2"),
        ([1, 2, 3, 4], [3.0, 2.0, np.nan, 1.0], "finite"),
        ([1, 2, 3, 40], [3.0, 2.0, 1.5, 1.0], "no smaller than every size, got 10.0 and 40"),
        ([0, 2, 3, 4], [3.0, 2.0, 1.5, 1.0], "sizes must be positive"),
        ([1, 2, 3, 4], [1.0, 1.1, 1.2, 1.3], "do not fall with size"),
        ([1, 2, 3, 4], [1.0, 1.1], "must be as many"),
    ],
)
def test_losses_without_a_law_are_refused(sizes, losses, message):
    with pytest.raises(ValueError, match=message):
        predict_loss(sizes, losses, 10.0)


def test_losses_that_fall_ever_faster_have_the_law_without_a_rest():
    losses = [5.6, 5.5, 5.1, 4.2]
    prediction = predict_loss(SIZES, losses, TARGET)
    assert prediction.law.irreducible == 0.0
    assert prediction.law.loss(TARGET) == pytest.approx(prediction.loss)
    assert 0.0 <= prediction.low < prediction.loss < prediction.high


def test_confidence_is_a_share():
    with pytest.raises(ValueError, match=r"confidence must be in \(0, 1\), got 90"):
        predict_loss([1, 2, 3, 4], [3.0, 2.0, 1.5, 1.2], 10.0, confidence=90)


@pytest.mark.parametrize("freedom", [1, 2, 3, 10, 1000])
def test_quantiles_are_those_of_student(freedom):
    for confidence in (0.5, 0.9, 0.999):
        expected = t.ppf((1 + confidence) / 2, freedom)
        assert student_quantile(confidence, freedom) == pytest.approx(expected, rel=1e-6)
