"""Sums of the laws of nodes, one and many at once, against sums over single tokens."""

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from anchored.decode.byte.prompt import interval_sums


def expected_sums(logits: Tensor, allowed: np.ndarray, law, intervals) -> Tensor:
    masked = logits.double().masked_fill(~torch.from_numpy(allowed), -math.inf)
    bounds = zip(np.repeat(law, 2), *intervals.reshape(-1, 2).T, strict=True)
    sums = [masked[n, low:high].logsumexp(0) for n, low, high in bounds]
    return torch.stack(sums).view(intervals.shape[:-1])


@given(
    num_laws=st.integers(1, 4),
    num_columns=st.integers(1, 40),
    scale=st.sampled_from([0.0, 3.0, 60.0, 500.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=150, deadline=None)
def test_every_interval_is_summed_on_its_own_scale(num_laws, num_columns, scale, dtype, seed):
    source = np.random.default_rng(seed)
    logits = scale * torch.from_numpy(source.standard_normal((num_laws, num_columns))).to(dtype)
    logits[torch.from_numpy(source.random((num_laws, num_columns)) < 0.1)] = -math.inf
    allowed = source.random((num_laws, num_columns)) < 0.7
    law = source.integers(num_laws, size=6)
    intervals = np.sort(source.integers(num_columns + 1, size=(6, 2, 2)))
    order = torch.from_numpy(source.permutation(num_columns))
    actual = torch.from_numpy(interval_sums(logits, order, allowed, law, intervals))
    expected = expected_sums(logits[:, order], allowed, law, intervals)
    is_none = expected == -math.inf
    assert bool((actual == -math.inf)[is_none].all())
    # Exponents are differences from the largest logit, rounded to the dtype.
    depth = logits.double().amax(1)[torch.from_numpy(law), None] - expected
    bound = torch.finfo(dtype).eps * (8.0 + depth.abs()) + 1e-14 * expected.abs()
    assert bool(((actual - expected).abs() <= bound)[~is_none].all())


@given(value=st.sampled_from([math.nan, math.inf]), place=st.integers(0, 9))
@settings(deadline=None)
def test_a_broken_law_is_nan_and_the_others_are_not(value, place):
    logits = torch.zeros(2, 10)
    logits[1, place] = value
    whole = np.array([[[0, 10]], [[0, 10]]])
    allowed = np.ones((2, 10), np.bool_)
    sums = torch.from_numpy(interval_sums(logits, torch.arange(10), allowed, np.arange(2), whole))
    assert math.isclose(float(sums[0, 0]), math.log(10), rel_tol=1e-7)
    assert sums[1].isnan().all()
