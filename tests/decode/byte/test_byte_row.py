"""One row of a byte stream without a model: what it says of its tree, and what it asks for."""

import math

import pytest
import torch
from byte_streams import path_of

from anchored.decode.byte.byte_row import ByteRow
from anchored.decode.byte.node_law import node_laws
from anchored.decode.byte.settings import ByteCounts, ByteEvaluation
from anchored.decode.byte.token_tree import ROOT_NODE, TokenTree
from anchored.decode.byte.tree_cache import TreeCache

pytestmark = pytest.mark.parametrize("family", ["cl100k"])
TEXT = b"the harbour's the 12345 the harbour, \n\n the end "


def row_of(tree: TokenTree, **evaluation) -> ByteRow:
    return ByteRow(TreeCache(tree), ByteCounts(), ByteEvaluation(**evaluation), reach=1024)


def test_seen_tokens_are_those_of_the_path(tree):
    row = row_of(tree)
    start = set(tree.vocabulary.start_token_ids)
    for byte in TEXT:
        row.append(byte)
        for node, _ in tree.heads:
            assert set(row.seen(node).tolist()) == start | set(path_of(tree, node))
    num_tokens = tree.depth[tree.heads[0].node]
    assert len(row.seen(tree.heads[0].node)) < num_tokens  # "the" is there once


def test_nothing_is_guessed_behind_a_text_without_mass(tree):
    row = row_of(tree, prefetch=4)
    banned = torch.full((1, tree.vocabulary.vocab_size), -math.inf)
    (law,) = node_laws(tree.vocabulary, [tree.standing[ROOT_NODE]], banned)
    row.marginals.add_law(ROOT_NODE, law)
    row.append(ord("t"))
    forward = row.forward(row.wanted())
    assert forward is not None
    assert forward.nodes == row.wanted()
