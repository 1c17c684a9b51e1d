"""What is asked of the law of one node, against sums over its single tokens."""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anchored.decode.byte.node_law import NodeLaw, log_sum_of, node_laws
from anchored.decode.byte.token_tree import ROOT_NODE, TokenTree
from anchored.decode.byte.tree_marginals import TreeMarginals
from anchored.decode.tokenizer.trie import ROOT
from anchored.decode.tokenizer.vocabulary import ByteVocabulary

pytestmark = pytest.mark.parametrize("family", ["cl100k"])
PREFIXES = (b"", b" ", b" t", b"t", b"'")


def law_after_nothing(vocabulary: ByteVocabulary, logits: torch.Tensor) -> NodeLaw:
    return next(node_laws(vocabulary, [vocabulary.viability.start()], logits[None]))


def node_of(vocabulary: ByteVocabulary, prefix: bytes) -> int:
    node = ROOT
    for byte in prefix:
        node = vocabulary.trie.child(node, byte)
    return node


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


@pytest.mark.parametrize("banned", [1e4, -math.inf])
def test_a_dead_end_adds_no_mass_whatever_is_banned(banned, vocabulary):
    allowed = vocabulary.viability.allowed(vocabulary.viability.start())
    logits = torch.full((vocabulary.vocab_size,), -math.inf)
    logits[vocabulary.trie.tokens[~allowed][0]] = banned
    marginals = TreeMarginals(TokenTree(vocabulary))
    marginals.add_law(ROOT_NODE, law_after_nothing(vocabulary, logits))
    masses, total = marginals.log_masses()
    assert masses.max() == total == marginals.log_total() == -math.inf
