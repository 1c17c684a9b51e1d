"""Sums over the tokens after a node, compared with sums of 60 digits where logits are far apart."""

import math
from functools import cache

import mpmath
import numpy as np
import pytest
import torch
from byte_pairs import tiny_byte_pair
from hypothesis import given, settings
from hypothesis import strategies as st

from anchored.decode.byte.byte_level import ByteLevel
from anchored.decode.byte.node_distribution import NodeDistribution, log_sum
from anchored.decode.tokenizer.trie import ROOT

TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5}
"""Relative: rounding of a difference of 80 nats to 24 bits is 4e-6, of its exponential as much."""

SCALES = st.sampled_from([1.0, 40.0, 500.0, 1e4])


@cache
def vocabulary():
    return ByteLevel(tiny_byte_pair()).vocabularies["safe"]


def log_sum_of_60_digits(terms) -> mpmath.mpf:
    """Not rounded: of sums near 1e4 float64 has eleven decimals, too few for their differences."""
    with mpmath.workdps(60):
        total = mpmath.fsum(mpmath.exp(mpmath.mpf(float(each))) for each in terms)
        return mpmath.log(total) if total else mpmath.ninf


def assert_close(ours: float, exact: mpmath.mpf, relative: float) -> None:
    """Probabilities, by their logarithms, of which float32 has 24 bits too."""
    expected = float(exact)
    allowed = relative * max(1.0, abs(expected) if relative < 1e-6 else 1.0)
    assert ours == expected or abs(ours - expected) <= allowed, (ours, expected)


@given(seed=st.integers(0, 2**32 - 1), scale=SCALES)
def test_a_sum_is_on_the_scale_of_its_largest_term(seed, scale):
    values = scale * np.random.default_rng(seed).standard_normal(30)
    values[::3] = -math.inf
    assert_close(log_sum(values), log_sum_of_60_digits(values), 64 * np.finfo(np.float64).eps)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), scale=SCALES, share=st.sampled_from([0.0, 0.1, 0.9]))
def test_each_sum_of_a_node_is_right_however_far_scores_are_apart(dtype, seed, scale, share):
    generator, trie = np.random.default_rng(seed), vocabulary().trie
    num_rows, num_scores = len(trie.tokens), vocabulary().vocab_size
    scores = torch.from_numpy(scale * generator.standard_normal(num_scores)).to(dtype)
    scores[torch.from_numpy(generator.random(num_scores) < 0.1)] = -math.inf  # truncated
    allowed = generator.random(num_scores) >= share
    allowed[num_rows + 1 :] = False
    node = NodeDistribution(vocabulary(), scores, torch.softmax(scores, -1), allowed)
    kept = np.where(allowed, scores.double().numpy(), -math.inf)
    total, relative = log_sum_of_60_digits(kept), TOLERANCES[dtype]
    assert total > -math.inf
    prefixes = [ROOT, *np.flatnonzero(trie.num_children)[1::17].tolist()]
    for prefix in prefixes:
        children = range(*trie.children(prefix).indices(10**9))
        for child, ours in zip(children, node.log_children(prefix), strict=True):
            rows = kept[trie.low[child] : trie.high[child]]
            assert_close(ours, log_sum_of_60_digits(rows) - total, relative)
    assert_close(node.log_end, log_sum_of_60_digits(kept[num_rows:]) - total, relative)
    everything = log_sum_of_60_digits(scores.double().tolist())
    masked = float(-mpmath.expm1(total - everything))
    assert node.masked_mass == pytest.approx(masked, abs=relative)
    likely = node.likely(ROOT, math.log(0.01))
    assert set(likely) == set(np.flatnonzero(kept[:num_rows] - float(total) >= math.log(0.01)))


@pytest.mark.parametrize(("score", "expected"), [(None, -math.inf), (math.inf, math.nan)])
def test_nothing_follows_where_no_score_is_left_and_a_broken_one_breaks_all(score, expected):
    scores = torch.full((vocabulary().vocab_size,), -math.inf)
    allowed = np.ones(len(scores), np.bool_)
    if score is not None:
        scores[:] = torch.arange(len(scores))
        scores[7], allowed[7] = score, False
    node = NodeDistribution(vocabulary(), scores, torch.softmax(scores, -1), allowed)
    assert np.array_equal(node.first_bytes, np.full(len(node.first_bytes), expected), True)
    logs = [node.log_end, node.of_token(int(vocabulary().trie.tokens[3])), node.log_reach(ROOT)]
    assert np.array_equal(logs, [expected] * 3, equal_nan=True)
    assert node.masked_mass == 0.0
