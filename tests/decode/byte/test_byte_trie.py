"""The flat trie against prefix searches in a sorted list."""

import random

import numpy as np

from anchored.decode.tokenizer.trie import ROOT, ByteTrie

SOURCE = random.Random(0)
WORDS = {bytes(SOURCE.choices(b"ab\xe4 ", k=SOURCE.randint(1, 6))) for _ in range(300)}
BYTES_OF = {1000 + place: word for place, word in enumerate(sorted(WORDS, key=hash))}


def node_of(trie: ByteTrie, prefix: bytes) -> int:
    node = ROOT
    for byte in prefix:
        node = trie.child(node, byte)
    return node


def test_nodes_are_the_intervals_of_all_prefixes():
    trie = ByteTrie(BYTES_OF)
    prefixes = {word[:length] for word in WORDS for length in range(len(word) + 1)}
    assert len(trie.low) == len(prefixes)
    for prefix in prefixes:
        low, high = trie.interval(prefix)
        assert set(trie.texts[low:high]) == {word for word in WORDS if word.startswith(prefix)}
        node = node_of(trie, prefix)
        assert [BYTES_OF[token] for token in trie.ends(node)] == [prefix] * (prefix in WORDS)
        children = bytes(trie.byte[trie.children(node)])
        assert children == bytes(sorted({p[-1] for p in prefixes if p and p[:-1] == prefix}))


def test_children_of_many_nodes_are_those_of_each():
    trie = ByteTrie(BYTES_OF)
    nodes, symbols = np.mgrid[: len(trie.low), :257].reshape(2, -1)
    expected = [
        trie.child(node, symbol) if symbol < 256 else -1
        for node, symbol in zip(nodes.tolist(), symbols.tolist(), strict=True)
    ]
    assert trie.children_at(nodes, symbols).tolist() == expected


def test_rows_are_sorted_by_bytes():
    trie = ByteTrie(BYTES_OF)
    assert trie.texts == sorted(WORDS)
    assert all(trie.row_of[int(token)] == row for row, token in enumerate(trie.tokens))


def test_absent_prefixes_have_no_node_and_no_rows():
    trie = ByteTrie(BYTES_OF)
    assert trie.child(ROOT, 0x00) == -1
    assert trie.interval(b"\x00") == (0, 0)


def test_tokens_with_the_same_bytes_end_at_one_node():
    trie = ByteTrie({7: b"ab", 3: b"ab", 5: b"a"})
    assert trie.ends(node_of(trie, b"ab")) == [3, 7]
