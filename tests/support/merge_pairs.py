"""Pairs of tokens that are hard to tell canonical from not, and the library's word on them."""

import random
from functools import cache

from tokenizers import Tokenizer

from anchored.decode.tokenizer.merges import MergeTable
from anchored.decode.tokenizer.tokenizer_file import LETTER_OF, read_tokenizer


@cache
def merge_table(tokenizer: Tokenizer) -> MergeTable:
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


def library_says(
    tokenizer: Tokenizer, table: MergeTable, pairs: list[tuple[int, int]]
) -> list[bool]:
    """Whether it makes exactly these two tokens of their bytes."""
    texts = [table.bytes_of[left] + table.bytes_of[right] for left, right in pairs]
    return [ids == [*pair] for ids, pair in zip(encoded(tokenizer, texts), pairs, strict=True)]
