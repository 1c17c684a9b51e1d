"""Canonical pairs and rows of them, against the `tokenizers` library and BPE by definition."""

import random

import numpy as np
import pytest
from merge_pairs import encoded, hard_pairs, library_says

from anchored.decode.tokenizer.merges import MergeTable, PairRows


@pytest.mark.sampled(3)
def test_pairs_agree_with_the_library(tokenizer, table):
    pairs = hard_pairs(table, 20_000)
    expected = library_says(tokenizer, table, pairs)
    assert [table.is_valid_pair(*pair) for pair in pairs] == expected
    assert 0.1 < np.mean(expected) < 0.99


def test_rows_agree_with_pairs(table):
    tokens = np.array(sorted(table.bytes_of), np.int32)
    rows = PairRows(table, tokens)
    for left in random.Random(3).sample(sorted(table.rank), 60):
        expected = [not table.is_valid_pair(left, right) for right in tokens.tolist()]
        assert rows.invalid(left).tolist() == expected


def test_bpe_by_definition_agrees_with_the_library(tokenizer, table):
    texts = [bytes(random.Random(seed).choices(b" the'nrsao", k=9)) for seed in range(2000)]
    assert [table.encode(text) for text in texts] == encoded(tokenizer, texts)


def test_a_split_of_higher_rank_pieces_is_found_irregular():
    # "abc" is made by rank 0 from "bc", which only rank 1 makes: ranks do not increase.
    bytes_of = {0: b"a", 1: b"b", 2: b"c", 3: b"bc", 4: b"abc", 5: b"aa"}
    table = MergeTable(bytes_of, [(0, 3, 4), (1, 2, 3), (0, 0, 5)])
    assert table.irregular == {4}
    rows = PairRows(table, np.arange(6, dtype=np.int32))
    for left in range(6):
        for right in range(6):
            valid = table.encode(bytes_of[left] + bytes_of[right]) == [left, right]
            assert table.is_valid_pair(left, right) == valid
            assert rows.invalid(left)[right] == (not valid)


@pytest.mark.parametrize(("left", "right", "valid"), [(3, 0, True), (0, 0, False), (5, 0, True)])
def test_equal_ranks_merge_leftmost_first(left, right, valid):
    bytes_of = {0: b"a", 3: b"b", 5: b"aa"}
    table = MergeTable(bytes_of, [(0, 0, 5)])
    assert table.is_valid_pair(left, right) == valid
