"""The vocabulary-wide rows that were used last."""

from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.bool_]


class RowCache:
    """Boolean rows by key, packed to bits; the least recently used one makes room."""

    def __init__(self, num_rows: int) -> None:
        """num_rows: how many are kept; one of 128k columns takes 16 kB."""
        self._limit = num_rows
        self._rows: OrderedDict[Hashable, tuple[NDArray[np.uint8], int]] = OrderedDict()

    def get(self, key: Hashable, compute: Callable[[], Row]) -> Row:
        """The row of `key`, computed the first time."""
        if key in self._rows:
            self._rows.move_to_end(key)
            bits, length = self._rows[key]
            return np.unpackbits(bits, count=length).view(np.bool_)
        row = compute()
        self._rows[key] = (np.packbits(row), len(row))
        if len(self._rows) > self._limit:
            self._rows.popitem(last=False)
        return row
