"""All tokens that may not follow a given one inside a pretoken, as one row."""

import numpy as np
from numpy.typing import NDArray

from .merge_table import RANK_LIMIT, MergeTable
from .row_cache import RowCache

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
        self._column = {int(token): column for column, token in enumerate(tokens)}
        tour, end = _euler_tour(merges)
        self._num_stops = len(tour)
        outside = self._num_stops
        self._stop_of_column = np.array([tour.get(int(t), outside) for t in tokens], np.int64)
        self._bans = _bans_by_left_token(merges, tour, end)
        self._irregular_pieces = [(t, set(merges.left_spine[t])) for t in merges.irregular]
        self._cache = RowCache(MAX_CACHED_ROWS)

    def invalid(self, left: int) -> NDArray[np.bool_]:
        """(V,) bool: the tokens that form no valid pair behind the reachable token `left`.

        Columns of unreachable tokens are False: they are never inside a longer pretoken.
        """
        return self._cache.get(left, lambda: self._compute(left))

    def _compute(self, left: int) -> NDArray[np.bool_]:
        is_irregular = left in self.merges.irregular
        changes = np.zeros(self._num_stops + 1, np.int32)
        spine = self.merges.right_spine[left]
        for piece, parent in zip(spine, (*spine[1:], None), strict=True):
            end = RANK_LIMIT if parent is None else self.merges.latest[parent] + is_irregular
            self._mark(changes, piece, end)
        invalid: NDArray[np.bool_] = np.cumsum(changes)[self._stop_of_column] > 0
        # An irregular piece may die before `latest`, so its row is an upper bound still.
        doubtful = self._tokens[invalid].tolist() if is_irregular else []
        for right in {*doubtful, *self._meeting_irregular(spine)}:
            invalid[self._column[right]] = not self.merges.encoded_pair_is_valid(left, right)
        return invalid

    def _mark(self, changes: NDArray[np.int32], piece: int, end: float) -> None:
        """Count the merges of `piece` that fire before it dies over the stops that they spoil."""
        bans = self._bans.get(piece)
        if bans is None:
            return
        alive = bans[: np.searchsorted(bans[:, 0], end)]
        for column, change in ((1, 1), (2, 1), (3, -1)):
            np.add.at(changes, alive[:, column], change)
        np.add.at(changes, alive[:, 1] + 1, -1)

    def _meeting_irregular(self, spine: tuple[int, ...]) -> list[int]:
        merged = self.merges.merged
        return [
            token
            for token, pieces in self._irregular_pieces
            if any((piece, other) in merged for piece in spine for other in pieces)
        ]


def _euler_tour(merges: MergeTable) -> tuple[dict[int, int], dict[int, int]]:
    """First and last-plus-one stop of each reachable token's subtree."""
    children: dict[int, list[int]] = {token: [] for token in merges.rank}
    by_rank = sorted(merges.split, key=merges.rank.__getitem__)
    for token in by_rank:
        children[merges.split[token][0]].append(token)
    order: list[int] = []
    stack = [token for token in merges.rank if token not in merges.split]
    while stack:
        order.append(stack.pop())
        stack.extend(reversed(children[order[-1]]))
    first = {token: stop for stop, token in enumerate(order)}
    end = {token: stop + 1 for token, stop in first.items()}
    for token in reversed(order):  # children come after their parent
        if token in merges.split:
            parent = merges.split[token][0]
            end[parent] = max(end[parent], end[token])
    return first, end


def _bans_by_left_token(
    merges: MergeTable, first: dict[int, int], end: dict[int, int]
) -> dict[int, NDArray[np.int64]]:
    """For each left piece u: rows (rank, stop of w, first spoilt stop, end), ascending by rank."""
    left, right, rank = _reachable_merges(merges)
    parent, child_rank, child = _children(merges)
    scale = max(len(merges.merged), 1) + 1
    keys = parent * scale + child_rank
    at = np.searchsorted(keys, right * scale + rank)
    inside = at < len(keys)
    is_child = inside & (np.append(parent, -1)[at] == right)
    stop = np.array([first[token] for token in right.tolist()], np.int64)
    last = np.array([end[token] for token in right.tolist()], np.int64)
    child_stop = np.array([*(first[token] for token in child.tolist()), 0], np.int64)
    spoilt = np.where(is_child, child_stop[at], last)
    order = np.lexsort((rank, left))
    table = np.stack((rank, stop, spoilt, last), 1)[order]
    owners, starts = np.unique(left[order], return_index=True)
    return dict(zip(owners.tolist(), np.split(table, starts[1:]), strict=True))


def _reachable_merges(
    merges: MergeTable,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    rows = [
        (left, right, rank)
        for (left, right), (rank, _) in merges.merged.items()
        if left in merges.rank and right in merges.rank
    ]
    left, right, rank = np.array(rows, np.int64).reshape(-1, 3).T
    return left, right, rank


def _children(
    merges: MergeTable,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(parent, rank, child) of the forest, sorted by parent and rank."""
    rows = sorted((pair[0], merges.rank[token], token) for token, pair in merges.split.items())
    parent, rank, child = np.array(rows, np.int64).reshape(-1, 3).T
    return parent, rank, child
