"""Sums over the tokens behind a node, held to sums of 60 digits where logits are far apart."""

import math

import mpmath
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anchored.decode.byte.node_law import log_sum, segment_log_sums

ROUNDINGS = 64
"""Of a sum of 30 terms, its logarithm and the largest term that is added again."""


@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1.0, 40.0, 500.0, 1e4]))
def test_segments_are_summed_on_their_own_scale(seed, scale):
    generator = np.random.default_rng(seed)
    values = scale * generator.standard_normal(30)
    values[generator.random(30) < 0.3] = -math.inf
    starts = np.array([0, *sorted(generator.choice(np.arange(1, 30), 4, replace=False))])
    segments = np.split(values, starts[1:])
    sums = [*segment_log_sums(values, starts), log_sum(values)]
    for found, terms in zip(sums, [*segments, values], strict=True):
        with mpmath.workdps(60):
            total = mpmath.fsum(mpmath.exp(mpmath.mpf(float(each))) for each in terms)
            expected = float(mpmath.log(total)) if total else -math.inf
        allowed = ROUNDINGS * np.finfo(np.float64).eps * max(1.0, abs(expected))
        assert found == expected or abs(found - expected) <= allowed
