"""The tree as it grows: what lives, what dies, what the trunk is, what a forward computes."""

import math

import pytest
import torch
from byte_streams import alive, grown

from anchored.decode.byte.byte_row import ByteRow
from anchored.decode.byte.node_law import node_laws
from anchored.decode.byte.token_tree import ROOT_NODE

PROSE = "The harbour bell rang twice; nobody'd pulled its rope.\n\n  It's  1234 caf\u00e9s! " * 3


def test_the_trunk_only_grows_and_begins_the_final_tokenization(tokenizer, tree):
    final = tokenizer.encode(PROSE).ids
    before: list[int] = []
    for byte in tree.vocabulary.normalize(PROSE):
        tree.append(byte)
        trunk = list(tree.trunk())
        assert trunk[: len(before)] == before
        assert [tree.token[node] for node in trunk] == final[: len(trunk)]
        before = trunk
    assert len(before) > 0.9 * len(final)


def test_a_byte_that_cannot_follow_changes_nothing(vocabulary):
    tree = grown(vocabulary, "caf\u00e9".encode())
    before = (len(tree), list(tree.heads), bytes(tree.text), alive(tree))
    with pytest.raises(ValueError, match="byte 0xa9 cannot follow"):
        tree.append(0xA9)
    assert (len(tree), list(tree.heads), bytes(tree.text), alive(tree)) == before


def test_long_texts_need_no_recursion(vocabulary):
    assert len(grown(vocabulary, b"ab" * 3000).trunk()) > 500


@pytest.mark.parametrize("family", ["cl100k"])
def test_nothing_is_guessed_behind_a_text_without_mass(vocabulary):
    row = ByteRow(vocabulary, prefetch=4, reach=1024)
    banned = torch.full((1, vocabulary.vocab_size), -math.inf)
    (law,) = node_laws(vocabulary, [row.tree.state[ROOT_NODE]], banned)
    row.marginals.add_law(ROOT_NODE, law)
    row.append(ord("t"))
    forward = row.forward(row.wanted())
    assert forward is not None
    assert forward.nodes == [ROOT_NODE, *row.wanted()]
