"""Canonical pairs and rows of them, against the `tokenizers` library and BPE by definition."""

import random

import numpy as np
import pytest
from byte_tokenizers import PUBLISHED_NAMES, published
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from anchored.decode.tokenizer.merges import MergeTable, PairRows
from anchored.decode.tokenizer.tokenizer_file import LETTER_OF, read_tokenizer


@pytest.fixture
def table(tokenizer) -> MergeTable:
    file = read_tokenizer(tokenizer)
    return MergeTable(file.token_bytes, file.merges)


def hard_pairs(table: MergeTable, number: int) -> list[tuple[int, int]]:
    """Half of them are random; in the others the junction is that of a merge, with longer tokens on
    both sides."""
    source, tokens = random.Random(1), list(table.rank)
    ending, starting = {}, {}
    for token in tokens:
        for piece in table.right_spine(token):
            ending.setdefault(piece, []).append(token)
        for piece in table.left_spine(token):
            starting.setdefault(piece, []).append(token)
    merges = [pair for pair in table.merged if pair[0] in ending and pair[1] in starting]
    chosen = source.choices(merges, k=number // 2)
    joined = [(source.choice(ending[u]), source.choice(starting[w])) for u, w in chosen]
    return joined + [(source.choice(tokens), source.choice(tokens)) for _ in chosen]


def encoded(tokenizer: Tokenizer, texts: list[bytes]) -> list[list[int]]:
    """The tokens that the library's BPE makes of bytes taken as one pretoken each."""
    written = ["".join(LETTER_OF[byte] for byte in text) for text in texts]
    batch = Tokenizer(tokenizer.model).encode_batch_fast(written, add_special_tokens=False)
    return [encoding.ids for encoding in batch]


@pytest.mark.parametrize("family", ["cl100k", *published])
def test_pairs_agree_with_the_library(family, tokenizer, table):
    pairs = hard_pairs(table, 50_000 if family in PUBLISHED_NAMES else 5_000)
    texts = [table.bytes_of[left] + table.bytes_of[right] for left, right in pairs]
    tokens = encoded(tokenizer, texts)
    expected = [ids == [*pair] for ids, pair in zip(tokens, pairs, strict=True)]
    assert [table.is_valid_pair(*pair) for pair in pairs] == expected
    assert 0.1 < np.mean(expected) < 0.999


@given(
    merges=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=24),
    order=st.randoms(),
)
@settings(max_examples=40)
def test_rows_agree_with_the_library_for_merges_in_any_order(merges, order):
    """Llama 3 has 49,595 merges that rank before one that makes a part of theirs."""
    names, pairs = ["a", "b"], []
    for left, right in merges:
        pair = names[left % len(names)], names[right % len(names)]
        if len("".join(pair)) <= 5 and pair not in pairs:
            pairs.append(pair)
            names += ["".join(pair)] * ("".join(pair) not in names)
    order.shuffle(pairs)
    ids = {name: token for token, name in enumerate(names)}
    bpe = Tokenizer(models.BPE(ids, pairs))
    bytes_of = {token: name.encode() for name, token in ids.items()}
    made = MergeTable(bytes_of, [(ids[one], ids[other], ids[one + other]) for one, other in pairs])
    reachable = [bpe.encode(name).ids == [token] for name, token in ids.items()]
    assert reachable == [made.is_reachable(token) for token in bytes_of]
    rows = PairRows(made, np.arange(len(names), dtype=np.int32))
    kept = np.flatnonzero(reachable)
    for left in kept.tolist():
        texts = [names[left] + names[right] for right in kept]
        encodings = zip(bpe.encode_batch(texts), kept, strict=True)
        valid = [text.ids == [left, right] for text, right in encodings]
        assert [made.is_valid_pair(left, right) for right in kept.tolist()] == valid
        assert (~rows.invalid(left)[kept]).tolist() == valid


@pytest.mark.parametrize("family", ["cl100k"])
def test_bpe_by_definition_agrees_with_the_library(tokenizer, table):
    texts = [bytes(random.Random(seed).choices(b" the'nrsao", k=9)) for seed in range(500)]
    assert [table.encode(text) for text in texts] == encoded(tokenizer, texts)
