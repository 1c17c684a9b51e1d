"""The merges of a BPE: how each token is made, and which two may be neighbors."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from .trie import Row, cached_rows
from .utf8 import TokenCut, cut

Ints = NDArray[np.int64]


class BaseSymbols:
    """The symbols that merges begin with: tokens of characters, and of the bytes of all others."""

    def __init__(
        self,
        bytes_of: Mapping[int, bytes],
        byte_tokens: Mapping[int, int],
        characters: Mapping[str, int] | None = None,
    ) -> None:
        """bytes_of: bytes of each base token. byte_tokens: by byte. characters: tokens of those
        that are never spelled in bytes; None for a BPE of bytes, which knows no characters."""
        self._known, self._bytes = frozenset(bytes_of), byte_tokens
        self._is_of_bytes, self._characters = characters is None, characters or {}
        spelled = [t for b, t in byte_tokens.items() if b > 127 or chr(b) not in self._characters]
        self.tokens = [t for t in self._characters.values() if t in self._known] + spelled
        """The tokens of single symbols."""

    def of(self, text: bytes) -> list[int] | None:
        """The symbols of bytes, which may begin and end inside characters; None where some part
        has none or is an added token, which is cut out of all texts, and where no text has it."""
        parts = TokenCut(text, "", b"") if self._is_of_bytes else cut(text)
        if parts is None:
            return None
        symbols = [self._bytes.get(byte, -1) for byte in parts.lead]
        for character in parts.characters:
            if (token := self._characters.get(character)) is not None:
                symbols.append(token)
            else:
                symbols += [self._bytes[byte] for byte in character.encode()]
        symbols += [self._bytes[byte] for byte in parts.tail]
        return symbols if self._known.issuperset(symbols) else None


RANK_LIMIT = math.inf
MAX_CACHED_PAIRS = 1 << 20


class MergeTable:
    """Canonicality inside one pretoken (notation: rank of a merge = its index in the list).

    A token is *reachable* when BPE turns its bytes into it. A sequence of reachable tokens is what
    BPE makes of its bytes if and only if every adjacent pair is valid. `split` holds the merge that
    really makes each token, `rank` its rank and `latest` the highest rank among all merges that
    lead to it. A token whose split does not follow the order of ranks is *irregular*, and pairs
    that touch one are decided by running BPE.
    Source: Berglund and van der Merwe 2023, "Formalizing BPE Tokenization"; rust-gems `bpe`.
    """

    def __init__(
        self,
        bytes_of: Mapping[int, bytes],
        merges: Iterable[tuple[int, int, int]],
        symbols: BaseSymbols | None = None,
    ) -> None:
        """bytes_of: bytes of each base token. merges: (left, right, merged), most urgent first.
        symbols: what merges begin with, single bytes by default."""
        self.bytes_of = bytes_of
        single = {text[0]: token for token, text in bytes_of.items() if len(text) == 1}
        self._symbols = symbols or BaseSymbols(bytes_of, single)
        self.merged: dict[tuple[int, int], tuple[int, int]] = {}
        for rank, (left, right, merged) in enumerate(merges):
            self.merged.setdefault((left, right), (rank, merged))
        self.split: dict[int, tuple[int, int]] = {}
        self.rank = dict.fromkeys(self._symbols.tokens, -1)
        self.latest = dict(self.rank)
        self.left_spine, self.right_spine = (cache(partial(self._spine, side)) for side in (0, 1))
        """The parts of a token on one side, from a byte to itself; few tokens are asked for."""
        self._find_splits()
        self.irregular = self._find_irregular()
        self.encoded_pair_is_valid = lru_cache(MAX_CACHED_PAIRS)(self._encoded_pair_is_valid)
        """`is_valid_pair` by running BPE: slow, right for irregular tokens too; remembered."""

    def _spine(self, side: int, token: int) -> tuple[int, ...]:
        halves = self.split.get(token)
        if halves is None:
            return (token,)
        return *(self.right_spine if side else self.left_spine)(halves[side]), token

    def is_reachable(self, token: int) -> bool:
        """True if BPE turns the bytes of `token` into `token`."""
        return token in self.rank

    def encode(self, text: bytes, *, least: int = 1) -> list[int]:
        """BPE by definition: the most urgent merge, leftmost first, down to `least` tokens or
        none; [] where some part of the text has no symbol."""
        tokens = self._symbols.of(text) or []
        while len(tokens) > least:
            pairs = pairwise(tokens)
            ranks = [self.merged[pair][0] if pair in self.merged else RANK_LIMIT for pair in pairs]
            at = min(range(len(ranks)), key=ranks.__getitem__)
            if ranks[at] == RANK_LIMIT:
                break
            tokens[at : at + 2] = [self.merged[tokens[at], tokens[at + 1]][1]]
        return tokens

    def is_valid_pair(self, left: int, right: int) -> bool:
        """True if BPE turns the bytes of two reachable tokens into these two tokens."""
        if left in self.irregular or right in self.irregular:
            return self.encoded_pair_is_valid(left, right)
        return self._meet(self.right_spine(left), self.left_spine(right), RANK_LIMIT)

    def _encoded_pair_is_valid(self, left: int, right: int) -> bool:
        return self.encode(self.bytes_of[left] + self.bytes_of[right]) == [left, right]

    def _meet(self, left: Sequence[int], right: Sequence[int], limit: float) -> bool:
        """True if no merge of rank below `limit` crosses the junction of two spines.

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
            if self._meet(self.right_spine(left), self.left_spine(right), rank):
                self._set_split(merged, left, right, rank)

    def _set_split(self, token: int, left: int, right: int, rank: int) -> None:
        self.split[token] = (left, right)
        self.rank[token] = rank
        self.latest[token] = max(rank, self.latest[left], self.latest[right])

    def _find_irregular(self) -> frozenset[int]:
        """Tokens that BPE makes although ranks do not increase along their split."""
        missed = self.bytes_of.keys() - self.rank.keys()
        shortest_first = sorted(missed, key=lambda token: len(self.bytes_of[token]))
        irregular = [t for t in shortest_first if self.encode(self.bytes_of[t]) == [t]]
        for token in irregular:
            left, right = self.encode(self.bytes_of[token], least=2)
            self._set_split(token, left, right, self.merged[left, right][0])
        return frozenset(irregular)


MAX_CACHED_ROWS = 2048


class PairRows:
    """Rows of "not a valid pair", from intervals of an Euler tour.

    Tokens form a forest: the parent of a token is the left half of its split, children ordered by
    rank, so that the tokens whose left spine passes through w by a child of rank >= k are one
    interval of the tour, together with w itself.
    """

    def __init__(self, merges: MergeTable, tokens: NDArray[np.int32]) -> None:
        """tokens: (V,) int32, those of the columns of a row; some may be unreachable."""
        self.merges = merges
        self._tokens = tokens
        self._column = {token: column for column, token in enumerate(tokens.tolist())}
        self._bans, self._bans_of, first = _bans(
            merges, 1 + max(*merges.bytes_of, *merges.rank, *tokens.tolist())
        )
        self._num_stops = len(merges.rank)
        stops = first[tokens]
        self._stop_of_column = np.where(stops < 0, self._num_stops, stops)
        self._meeting = _meeting(merges)
        self.invalid = cached_rows(self._invalid, MAX_CACHED_ROWS, len(tokens))
        """(V,) bool: the tokens that form no valid pair after a reachable token.

        Columns of unreachable tokens are False: they are never inside a longer pretoken.
        """

    def _invalid(self, left: int) -> Row:
        is_irregular = left in self.merges.irregular
        spine = self.merges.right_spine(left)
        # 1. The merges of its pieces that fire before these die.
        fired = []
        for piece, parent in zip(spine, (*spine[1:], None), strict=True):
            end = RANK_LIMIT if parent is None else self.merges.latest[parent] + is_irregular
            bans = self._bans[self._bans_of[piece] : self._bans_of[piece + 1]]
            fired.append(bans[: np.searchsorted(bans[:, 0], end)])
        # 2. The stops that they spoil: a few intervals, whose ends alone are counted.
        _, stop, first, end = np.concatenate(fired).T
        ends = np.concatenate((stop, first, stop + 1, end))
        order = np.argsort(ends)
        counts = np.cumsum(np.repeat((1, -1), 2 * len(stop))[order])
        lengths = np.diff(ends[order], prepend=0, append=self._num_stops + 1)
        is_spoilt = np.repeat(np.append(False, counts > 0), lengths)
        invalid: NDArray[np.bool_] = is_spoilt[self._stop_of_column]
        # An irregular piece may die before `latest`, so its row is an upper bound still.
        doubtful = set(self._tokens[invalid].tolist()) if is_irregular else set()
        for right in doubtful.union(*(self._meeting.get(piece, ()) for piece in spine)):
            invalid[self._column[right]] = not self.merges.encoded_pair_is_valid(left, right)
        return invalid


def _meeting(merges: MergeTable) -> dict[int, set[int]]:
    """The irregular tokens that have, on their left side, a piece with which a piece merges."""
    tokens_of: dict[int, set[int]] = {}
    for token in merges.irregular:
        for piece in merges.left_spine(token):
            tokens_of.setdefault(piece, set()).add(token)
    meeting: dict[int, set[int]] = {}
    for left, right in merges.merged:
        if right in tokens_of:
            meeting.setdefault(left, set()).update(tokens_of[right])
    return meeting


def _euler_tour(merges: MergeTable, parent: Ints, child: Ints, num_ids: int) -> tuple[Ints, Ints]:
    """First and last-plus-one stop of each token's subtree, (num_ids,) each; -1: unreachable."""
    sizes = dict.fromkeys(merges.rank, 1)
    for token, (left, _) in reversed(merges.split.items()):  # children come after their parent
        sizes[left] += sizes[token]
    after = np.cumsum([0, *map(sizes.__getitem__, child.tolist())])[:-1]
    after += 1 - after[np.searchsorted(parent, parent)]  # stops after the parent's first one
    after_parent = dict(zip(child.tolist(), after.tolist(), strict=True))
    first: dict[int, int] = {}
    num_stops = 0
    for token in merges.rank:
        if token in merges.split:
            first[token] = first[merges.split[token][0]] + after_parent[token]
        else:
            first[token] = num_stops
            num_stops += sizes[token]
    tour = np.full((2, num_ids), -1)
    tokens = np.fromiter(first, np.int64)
    tour[0, tokens] = np.fromiter(first.values(), np.int64)
    tour[1, tokens] = tour[0, tokens] + np.fromiter(map(sizes.__getitem__, first), np.int64)
    return tour[0], tour[1]


def _bans(merges: MergeTable, num_ids: int) -> tuple[Ints, Ints, Ints]:
    """The bans of each left piece u: rows, where those of each token begin, first stops.

    The rows of a piece are (rank, stop of w, first spoilt stop, end), ascending by rank. A merge
    waits for both of its parts: its rank here is that of the last of the three.
    """
    # 1. The forest, ascending by parent, then by rank.
    child = np.fromiter(merges.split, np.int64)
    parent = np.fromiter((pair[0] for pair in merges.split.values()), np.int64)
    child_rank = np.fromiter(map(merges.rank.__getitem__, merges.split), np.int64)
    order = np.lexsort((child_rank, parent))
    parent, child_rank, child = parent[order], child_rank[order], child[order]
    # 2. The merges of each left piece, and the stops that they spoil.
    first, end = _euler_tour(merges, parent, child, num_ids)
    left, right = np.fromiter(chain.from_iterable(merges.merged), np.int64).reshape(-1, 2).T
    made = np.full(num_ids, -1)
    made[np.fromiter(merges.rank, np.int64)] = np.fromiter(merges.rank.values(), np.int64)
    rank = np.fromiter((rank for rank, _ in merges.merged.values()), np.int64)
    rank = np.maximum(rank, np.maximum(made[left], made[right]))
    both = np.flatnonzero((first[left] >= 0) & (first[right] >= 0))
    both = both[np.lexsort((rank[both], left[both]))]
    left, right, rank = left[both], right[both], rank[both]
    scale = max(len(merges.merged), 1) + 1
    keys = parent * scale + child_rank
    at = np.searchsorted(keys, right * scale + rank)
    is_child = np.append(parent, -1)[at] == right
    spoilt = np.where(is_child, np.append(first[child], 0)[at], end[right])
    rows = np.stack((rank, first[right], spoilt, end[right]), 1)
    return rows, np.searchsorted(left, np.arange(num_ids + 1)), first
