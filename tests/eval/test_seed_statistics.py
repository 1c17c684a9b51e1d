"""Mean and sample standard deviation over seeds."""

import math

import pytest

from anchored.eval.seed_statistics import over_seeds


def test_mean_and_sample_standard_deviation():
    assert over_seeds([1.0, 2.0, 6.0]) == (3.0, pytest.approx(math.sqrt(7)), 3)


def test_one_seed_has_no_spread():
    mean, std, num_seeds = over_seeds([0.5])
    assert (mean, num_seeds) == (0.5, 1)
    assert math.isnan(std)


def test_an_undefined_seed_makes_the_mean_undefined():
    mean, std, num_seeds = over_seeds([0.5, math.nan])
    assert math.isnan(mean)
    assert math.isnan(std)
    assert num_seeds == 2


def test_no_seeds_are_refused():
    with pytest.raises(ValueError, match="at least one value, got none"):
        over_seeds([])
