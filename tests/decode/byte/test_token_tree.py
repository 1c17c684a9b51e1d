"""The tree as it grows: what lives, what dies, what the trunk is, what a forward computes."""

import math

import numpy as np
import pytest
import torch
from byte_streams import alive, closed_path, path_of, vocabulary_of
from tokenizers import Tokenizer, models, pre_tokenizers

from anchored.decode.byte.byte_row import ByteRow
from anchored.decode.byte.node_law import node_laws
from anchored.decode.byte.settings import ByteCounts
from anchored.decode.byte.token_tree import NO_NODE, ROOT_NODE, TokenTree
from anchored.decode.byte.tree_cache import TreeCache
from anchored.decode.tokenizer.tokenizer_file import token_bytes

PROSE = "The harbour bell rang twice; nobody'd pulled its rope.\n\n  It's  1234 caf\u00e9s! " * 3


def missing(cache: TreeCache) -> list[int]:
    return cache.missing(head.node for head in cache.tree.heads)


def ancestors(tree: TokenTree, node: int) -> list[int]:
    chain = [node]
    while chain[-1] != ROOT_NODE:
        chain.append(tree.parent[chain[-1]])
    return chain[::-1]


def test_nodes_spell_the_text_up_to_their_end(tree):
    tree.extend(PROSE.encode())
    bytes_of = tree.vocabulary.viability.merges.bytes_of
    for node in range(1, len(tree)):
        spelt = b"".join(bytes_of[token] for token in path_of(tree, node))
        assert spelt == bytes(tree.text[: tree.end[node]])
        assert tree.depth[node] == len(path_of(tree, node))
        assert tree.parent[node] < node
    assert tree.parent[ROOT_NODE] == NO_NODE


def test_about_one_node_appears_for_each_byte(tree):
    counts = [len(tree.append(byte)) for byte in PROSE.encode()]
    assert min(counts) == 1
    assert max(counts) <= 2
    assert np.mean(counts) < 1.2


def test_the_alive_are_the_heads_and_their_ancestors(tree):
    for byte in PROSE.encode():
        tree.append(byte)
        needed = {ancestor for head in tree.heads for ancestor in ancestors(tree, head.node)}
        assert set(alive(tree)) == needed | {ROOT_NODE}


def test_the_trunk_only_grows_and_begins_the_final_tokenisation(tokenizer, tree):
    final = tokenizer.encode(PROSE).ids
    before: list[int] = []
    for byte in tree.vocabulary.normalize(PROSE):
        tree.append(byte)
        trunk = list(tree.trunk())
        assert trunk[: len(before)] == before
        assert [tree.token[node] for node in trunk] == final[: len(trunk)]
        before = trunk
    assert len(before) > 0.9 * len(final)


def test_a_byte_that_cannot_follow_changes_nothing(tree):
    tree.extend("caf\u00e9".encode())
    before = (len(tree), list(tree.heads), bytes(tree.text), alive(tree))
    with pytest.raises(ValueError, match="byte 0xa9 cannot follow"):
        tree.append(0xA9)
    assert (len(tree), list(tree.heads), bytes(tree.text), alive(tree)) == before


def test_long_texts_need_no_recursion(tree):
    tree.extend(b"ab" * 3000)
    assert len(tree.trunk()) > 500


def test_forwards_attend_to_exactly_their_ancestors(tree):
    cache = TreeCache(tree)
    held = [ROOT_NODE]
    for place, byte in enumerate(PROSE.encode()):
        tree.append(byte)
        forward = cache.add(missing(cache))
        held.extend(forward.nodes)
        for row, node in enumerate(forward.nodes):
            chain = ancestors(tree, node)
            assert [held[slot] for slot in np.flatnonzero(forward.mask[row])] == sorted(chain)
            assert forward.token_ids[row] == tree.token[node]
            assert forward.positions[row] == len(chain) - 1
        if place % 9 == 0:
            first, kept = cache.compact()
            held = [*held[:first], *(held[slot] for slot in kept)]
            assert sorted(held) == alive(tree)
    assert cache.num_causal > len(tree.trunk()) - 8


def test_slots_of_dead_nodes_are_counted_and_dropped(tree):
    cache = TreeCache(tree)
    for byte in PROSE.encode():
        tree.append(byte)
        cache.add(missing(cache))
    num_alive = len(alive(tree))
    assert cache.num_slots - cache.num_dead == num_alive
    assert cache.num_dead > 50
    first, kept = cache.compact()
    assert first + len(kept) == cache.num_slots == num_alive
    assert cache.num_dead == 0


def test_a_node_needs_its_parent_first(tree):
    cache = TreeCache(tree)
    tree.extend(b"the sea")
    last = max(range(len(tree)), key=tree.depth.__getitem__)
    with pytest.raises(ValueError, match="before its parent"):
        cache.add([last])


def test_the_trunk_of_a_prompt_is_computed_causally_and_the_rest_as_a_tree(tree):
    tree.extend(PROSE.encode())
    cache = TreeCache(tree)
    assert cache.add_trunk() == tree.trunk()
    assert cache.num_slots == cache.num_causal == len(tree.trunk()) + 1
    forward = cache.add(missing(cache))
    assert len(forward.nodes) <= 12
    assert not missing(cache)
    assert forward.mask[:, : cache.num_causal].all()
    with pytest.raises(ValueError, match="slots are not of the trunk"):
        cache.add_trunk()


def test_a_byte_that_only_begins_longer_tokens_ends_no_node():
    """As 0xc2 in GPT-NeoX's vocabulary, where every character that it begins is one token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = {token_bytes(letter)[0]: letter for letter in alphabet}
    pairs = [(letters[0xC2], letters[last]) for last in range(0x80, 0xC0)]
    words = ["<|end|>", *letters.values(), *map("".join, pairs)]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, pairs))
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tree = TokenTree(vocabulary_of(tokenizer))
    counts = [len(tree.append(byte)) for byte in "!\u00a0x".encode()]
    assert counts == [1, 0, 1, 1]
    assert closed_path(tree) == tokenizer.encode("!\u00a0x").ids
    tree.append(0xC2)
    with pytest.raises(ValueError, match="byte 0x41 cannot follow"):
        tree.append(0x41)


TEXT = b"the harbour's the 12345 the harbour, \n\n the end "


def row_of(tree: TokenTree, **changes) -> ByteRow:
    return ByteRow(TreeCache(tree), ByteCounts(), reach=1024, **changes)


@pytest.mark.parametrize("family", ["cl100k"])
def test_seen_tokens_are_those_of_the_path(tree):
    row = row_of(tree)
    start = set(tree.vocabulary.start_token_ids)
    for byte in TEXT:
        row.append(byte)
        for node, _ in tree.heads:
            assert set(row.seen(node).tolist()) == start | set(path_of(tree, node))
    num_tokens = tree.depth[tree.heads[0].node]
    assert len(row.seen(tree.heads[0].node)) < num_tokens  # "the" is there once


@pytest.mark.parametrize("family", ["cl100k"])
def test_nothing_is_guessed_behind_a_text_without_mass(tree):
    row = row_of(tree, prefetch=4)
    banned = torch.full((1, tree.vocabulary.vocab_size), -math.inf)
    (law,) = node_laws(tree.vocabulary, [tree.state[ROOT_NODE]], banned)
    row.marginals.add_law(ROOT_NODE, law)
    row.append(ord("t"))
    forward = row.forward(row.wanted())
    assert forward is not None
    assert forward.nodes == row.wanted()
