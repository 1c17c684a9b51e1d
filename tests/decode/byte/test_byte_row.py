"""One row of a byte stream without a model: what it says of its tree, and what it asks for."""

import math

import pytest
import torch
from tokenizers import Tokenizer

from anchored.decode.byte.byte_row import ByteRow
from anchored.decode.byte.node_law import node_laws
from anchored.decode.byte.settings import ByteCounts, ByteEvaluation
from anchored.decode.byte.token_tree import ROOT_NODE, TokenTree
from anchored.decode.byte.tree_cache import TreeCache
from anchored.decode.tokenizer.vocabulary import ByteVocabulary

pytestmark = pytest.mark.parametrize("family", ["cl100k"])
TEXT = b"the harbour's the 12345 the harbour, \n\n the end "


def row_of(tokenizer: Tokenizer, **evaluation) -> ByteRow:
    vocabulary = ByteVocabulary(tokenizer, [tokenizer.token_to_id("<|end|>")])
    cache = TreeCache(TokenTree(vocabulary))
    return ByteRow(cache, ByteCounts(), ByteEvaluation(**evaluation), reach=1024)


def test_seen_tokens_are_those_of_the_path(tokenizer):
    row = row_of(tokenizer)
    start = set(row.tree.vocabulary.start_token_ids)
    for byte in TEXT:
        row.append(byte)
        for node, _ in row.tree.heads:
            assert set(row.seen(node).tolist()) == start | set(row.tree.path(node))
    num_tokens = row.tree.depth[row.tree.heads[0].node]
    assert len(row.seen(row.tree.heads[0].node)) < num_tokens  # "the" is there once


def test_nothing_is_guessed_behind_a_text_without_mass(tokenizer):
    row = row_of(tokenizer, prefetch=4)
    tree = row.tree
    banned = torch.full((1, tree.vocabulary.vocab_size), -math.inf)
    (law,) = node_laws(tree.vocabulary, [tree.standing[ROOT_NODE]], banned)
    row.marginals.add_law(ROOT_NODE, law)
    row.append(ord("t"))
    forward = row.forward(row.wanted())
    assert forward is not None
    assert forward.nodes == row.wanted()
