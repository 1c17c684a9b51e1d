"""The merges of a byte-level BPE: how each token is made, and which two may stand side by side."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

RANK_LIMIT = math.inf
MAX_CACHED_PAIRS = 1 << 20


class MergeTable:
    """Canonicality inside one pretoken (notation: rank of a merge = its place in the list).

    A token is *reachable* when BPE turns its bytes into it. A sequence of reachable tokens is what
    BPE makes of its bytes if and only if every adjacent pair is valid. `split` holds the merge that
    really makes each token, `rank` its rank and `latest` the highest rank among all merges that
    lead to it. A token whose split does not follow the order of ranks is *irregular*, and pairs
    that touch one are decided by running BPE.
    Source: Berglund and van der Merwe 2023, "Formalizing BPE Tokenization"; rust-gems `bpe`.
    """

    def __init__(
        self, bytes_of: Mapping[int, bytes], merges: Iterable[tuple[int, int, int]]
    ) -> None:
        """bytes_of: bytes of each base token. merges: (left, right, merged), most urgent first."""
        self.bytes_of = bytes_of
        self.byte_token = {text[0]: token for token, text in bytes_of.items() if len(text) == 1}
        self.merged: dict[tuple[int, int], tuple[int, int]] = {}
        for rank, (left, right, merged) in enumerate(merges):
            self.merged.setdefault((left, right), (rank, merged))
        self.split: dict[int, tuple[int, int]] = {}
        self.rank = dict.fromkeys(self.byte_token.values(), -1)
        self.latest = dict(self.rank)
        self.left_spine: dict[int, tuple[int, ...]] = {token: (token,) for token in self.rank}
        self.right_spine = dict(self.left_spine)
        self._find_splits()
        self.irregular = self._find_irregular()
        self._pairs: dict[tuple[int, int], bool] = {}

    def is_reachable(self, token: int) -> bool:
        """Whether BPE turns the bytes of `token` into `token`."""
        return token in self.rank

    def encode(self, text: bytes) -> list[int]:
        """BPE by definition: apply the most urgent merge, leftmost first, until none applies."""
        tokens = [self.byte_token[byte] for byte in text]
        while len(tokens) > 1:
            pairs = pairwise(tokens)
            ranks = [self.merged[pair][0] if pair in self.merged else RANK_LIMIT for pair in pairs]
            at = min(range(len(ranks)), key=ranks.__getitem__)
            if ranks[at] == RANK_LIMIT:
                break
            tokens[at : at + 2] = [self.merged[tokens[at], tokens[at + 1]][1]]
        return tokens

    def is_valid_pair(self, left: int, right: int) -> bool:
        """Whether BPE turns the bytes of two reachable tokens into these two tokens."""
        if left in self.irregular or right in self.irregular:
            return self.encoded_pair_is_valid(left, right)
        return self._meet(self.right_spine[left], self.left_spine[right], RANK_LIMIT)

    def encoded_pair_is_valid(self, left: int, right: int) -> bool:
        """The same by running BPE: slow, right for irregular tokens too; remembered."""
        key = (left, right)
        if key not in self._pairs:
            if len(self._pairs) >= MAX_CACHED_PAIRS:
                self._pairs.clear()
            self._pairs[key] = self.encode(self.bytes_of[left] + self.bytes_of[right]) == [*key]
        return self._pairs[key]

    def _meet(self, left: Sequence[int], right: Sequence[int], limit: float) -> bool:
        """Whether no merge of rank below `limit` crosses the junction of two spines.

        A piece lives until its parent is made. A crossing merge fires if both of its pieces are
        alive at its rank; on equal rank the leftmost site is first, hence < on the left only.
        """
        i = j = 0
        while True:
            left_end = self.rank[left[i + 1]] if i + 1 < len(left) else limit
            right_end = self.rank[right[j + 1]] if j + 1 < len(right) else limit
            crossing = self.merged.get((left[i], right[j]))
            if crossing is not None and crossing[0] < left_end and crossing[0] <= right_end:
                return False
            if left_end == right_end == limit:
                return True
            if left_end <= right_end:
                i += 1
            else:
                j += 1

    def _find_splits(self) -> None:
        """The merge that makes each token: the first whose halves BPE leaves alone until then."""
        for (left, right), (rank, merged) in self.merged.items():
            if merged in self.rank or left not in self.rank or right not in self.rank:
                continue
            if self._meet(self.right_spine[left], self.left_spine[right], rank):
                self._set_split(merged, left, right, rank)

    def _set_split(self, token: int, left: int, right: int, rank: int) -> None:
        self.split[token] = (left, right)
        self.rank[token] = rank
        self.latest[token] = max(rank, self.latest[left], self.latest[right])
        self.left_spine[token] = (*self.left_spine[left], token)
        self.right_spine[token] = (*self.right_spine[right], token)

    def _find_irregular(self) -> frozenset[int]:
        """Tokens that BPE makes although ranks do not increase along their split."""
        missed = sorted(self.bytes_of.keys() - self.rank.keys(), key=self._num_bytes)
        irregular = [token for token in missed if self.encode(self.bytes_of[token]) == [token]]
        for token in irregular:
            self._set_split(token, *self._last_merge(token))
        return frozenset(irregular)

    def _num_bytes(self, token: int) -> int:
        return len(self.bytes_of[token])

    def _last_merge(self, token: int) -> tuple[int, int, int]:
        """(left, right, rank) of the merge that BPE applies last on the bytes of `token`."""
        tokens = [self.byte_token[byte] for byte in self.bytes_of[token]]
        while len(tokens) > 2:
            pairs = list(pairwise(tokens))
            ranks = [self.merged.get(pair, (RANK_LIMIT, -1))[0] for pair in pairs]
            at = min(range(len(ranks)), key=ranks.__getitem__)
            tokens[at : at + 2] = [self.merged[pairs[at]][1]]
        left, right = tokens
        return left, right, self.merged[left, right][0]
