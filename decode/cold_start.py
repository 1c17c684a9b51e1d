"""The risky model rests while a request has nothing to spend, and catches up in one forward."""

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from .stream import Stream

ALONE_FRACTION = 0.25
"""Share of cold rows from which they are drawn for alone: c / (1 + c) with a safe forward of a
third of the risky one's cost, about the dearest that is worth a pair."""


class Backlog:
    """The tokens of each row that one model has not read yet."""

    def __init__(self, stream: Stream, num_rows: int) -> None:
        self._stream = stream
        self._tokens: list[list[int]] = [[] for _ in range(num_rows)]

    def is_empty(self, row: int) -> bool:
        """Whether the model's logits after the newest token are known."""
        return not self._tokens[row]

    def of(self, row: int) -> list[int]:
        """What a row has not read, oldest first."""
        return list(self._tokens[row])

    def add(self, row: int, token_id: int) -> None:
        """A new token at the end of a row."""
        self._tokens[row].append(token_id)

    def set(self, row: int, tokens: Sequence[int]) -> None:
        """Replace what a row has not read."""
        self._tokens[row] = list(tokens)

    def read(self, rows: Sequence[int]) -> Iterator[tuple[list[int], Tensor]]:
        """Read on in these rows: (rows of one forward, their logits (R, vocab_size))."""
        for group in _by_length({row: self.of(row) for row in rows if self._tokens[row]}):
            yield group, self._stream.feed_rows(group, [self.of(row) for row in group])
            for row in group:
                self._tokens[row].clear()


def _by_length(tokens: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Rows by how many tokens they have: a row that catches up would pad the others' forward."""
    groups: dict[int, list[int]] = {}
    for row, unread in tokens.items():
        groups.setdefault(len(unread), []).append(row)
    return list(groups.values())


def rows_to_draw(allowances: Mapping[int, float], *, can_rest: bool) -> list[int]:
    """Rows whose next token is drawn now, by the nats that each may spend on it.

    Rows without an allowance need the safe model only, which is cheap by itself and saves nothing
    beside a risky forward: they are drawn for alone where that is worth the others' waiting.
    can_rest: rows may be fed apart from each other.
    """
    rows = list(allowances)
    cold = [row for row in rows if allowances[row] <= 0.0]
    is_worth_it = can_rest and len(cold) >= ALONE_FRACTION * len(rows)
    return cold if cold and is_worth_it else rows
