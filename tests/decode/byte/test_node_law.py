"""Sums of the laws of nodes, one and many at once, against sums over single tokens."""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from anchored.decode.byte.node_law import NodeLaw, TreeMarginals, log_sum_of, node_laws
from anchored.decode.byte.prompt import interval_sums
from anchored.decode.byte.token_tree import ROOT_NODE, TokenTree
from anchored.decode.tokenizer.trie import ROOT
from anchored.decode.tokenizer.vocabulary import ByteVocabulary

one_tokenizer = pytest.mark.parametrize("family", ["cl100k"])
PREFIXES = (b"", b" ", b" t", b"t", b"'")


def law_after_nothing(vocabulary: ByteVocabulary, logits: torch.Tensor) -> NodeLaw:
    return next(node_laws(vocabulary, [vocabulary.viability.start()], logits[None]))


def node_of(vocabulary: ByteVocabulary, prefix: bytes) -> int:
    node = ROOT
    for byte in prefix:
        node = vocabulary.trie.child(node, byte)
    return node


@one_tokenizer
@given(seed=st.integers(0, 2**31), scale=st.sampled_from((1.0, 20.0, 300.0)), data=st.data())
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_reach_likely_tokens_and_children_are_those_of_the_single_tokens(
    vocabulary, seed, scale, data
):
    """Scale 300 makes laws too wide for sums on one scale."""
    trie = vocabulary.trie
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(vocabulary.vocab_size, generator=generator, dtype=torch.float64)
    law = law_after_nothing(vocabulary, logits)
    prefix = node_of(vocabulary, data.draw(st.sampled_from(PREFIXES)))
    low, high = trie.longer(prefix)
    logs = [law.of_token(int(token)) for token in trie.tokens[low:high]]
    end = [law.log_end] if prefix == ROOT else []
    assert law.log_reach(prefix) == pytest.approx(log_sum_of([*logs, *end]), abs=1e-9)
    by_child = [
        log_sum_of(logs[trie.low[child] - low : trie.high[child] - low])
        for child in range(*trie.children(prefix).indices(len(trie.low)))
    ]
    np.testing.assert_allclose(law.log_children(prefix), by_child, rtol=0, atol=1e-9)
    ranked = sorted({value for value in logs if value > -math.inf}, reverse=True)
    place = data.draw(st.integers(0, min(5, len(ranked) - 1)))
    least = np.mean(ranked[place : place + 2]) if len(ranked) > place + 1 else ranked[place] - 1
    expected = [low + at for at, value in enumerate(logs) if value >= least]
    assert law.likely(prefix, least) == expected


@one_tokenizer
@pytest.mark.parametrize("banned", [1e4, -math.inf])
def test_a_dead_end_adds_no_mass_whatever_is_banned(banned, vocabulary):
    allowed = vocabulary.viability.allowed(vocabulary.viability.start())
    logits = torch.full((vocabulary.vocab_size,), -math.inf)
    logits[vocabulary.trie.tokens[~allowed][0]] = banned
    marginals = TreeMarginals(TokenTree(vocabulary))
    marginals.add_law(ROOT_NODE, law_after_nothing(vocabulary, logits))
    masses, total = marginals.log_masses()
    assert masses.max() == total == marginals.log_total() == -math.inf


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
