"""Keys and values of a batch whose rows have lengths of their own."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


def uploaded(values: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device; CUDA gets it through pinned memory, in the order of its work."""
    if device.type != "cuda" or values.device.type == "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


# B rows of the cache, R rows of one forward, T new columns, H heads, D head size.


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the keys and values of one forward go, and what its queries may read."""

    rows: Tensor
    """(R,) int64, rows of the cache."""
    columns: Tensor
    """(R, T) int64, column of each new key; those past a row's new length are scratch."""
    num_columns: int
    """Columns that hold something in one of the rows after this forward."""
    is_level: bool
    """All rows start at the same column, so the model's own causal mask is right."""
    is_fresh: bool
    """That column is 0, so the new keys are all that there is to read."""
    is_whole: bool
    """`rows` are all rows of the cache, in order."""


class RowCache(Cache):
    """B rows of one model, each with a pointer: columns below it count, columns above are stale.

    Rolling back is moving the pointer, as stale columns are masked and written over. Storage grows
    with the longest row, up to `max_length` columns. A freed row is zeroed: a masked NaN would
    still spread (0 * NaN) to the request that has the row next.
    """

    def __init__(self, num_layers: int, num_rows: int, max_length: int) -> None:
        self.num_rows, self.max_length = num_rows, max_length
        self.lengths = [0] * num_rows
        """B numbers of columns."""
        self._layers = [RowLayer(num_rows, max_length) for _ in range(num_layers)]
        super().__init__(layers=list(self._layers))

    def place(self, rows: Sequence[int], num_new: int, device: torch.device) -> Placement:
        """Announce a forward of `num_new` columns after the ends of these rows."""
        starts = [self.lengths[row] for row in rows]
        num_columns = max(starts) + num_new
        if num_columns > self.max_length:
            raise ValueError(f"the cache holds {self.max_length} columns, {num_columns} are needed")
        is_level = min(starts) == max(starts)
        if is_level:
            columns = torch.arange(starts[0], num_columns).expand(len(starts), -1)
        else:
            columns = torch.tensor(starts)[:, None] + torch.arange(num_new)
        placement = Placement(
            rows=uploaded(torch.tensor(rows), device),
            columns=uploaded(columns, device),
            num_columns=num_columns,
            is_level=is_level,
            is_fresh=not any(starts),
            is_whole=list(rows) == list(range(self.num_rows)),
        )
        for layer in self._layers:
            layer.placement = placement
        return placement

    def place_at(self, positions: Tensor) -> None:
        """Announce a forward of new columns in every row, at places that only the device knows.

        positions: (B, T) int64 on the device, below `max_length`; read when the forward runs. The
        storage must be reserved, and `lengths` is left to the caller.
        """
        placement = Placement(
            rows=torch.arange(self.num_rows, device=positions.device),
            columns=positions,
            num_columns=self.max_length,
            is_level=False,
            is_fresh=False,
            is_whole=True,
        )
        for layer in self._layers:
            layer.placement = placement

    def storage(self, layer: int) -> tuple[Tensor, Tensor]:
        """All keys and values of a layer, (B, H, capacity, D) each; there once some were stored."""
        return self._layers[layer].keys, self._layers[layer].values

    def reserve(self) -> None:
        """Let the first forward take all `max_length` columns, so that storage never moves."""
        for layer in self._layers:
            layer.first_capacity = self.max_length

    def advance(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """Move each row's pointer past its `counts` new columns."""
        for row, count in zip(rows, counts, strict=True):
            self.lengths[row] += count

    def roll_back(self, row: int, length: int) -> None:
        """Forget the columns of a row from `length` on."""
        if not 0 <= length <= self.lengths[row]:
            raise ValueError(
                f"row {row} holds {self.lengths[row]} columns, it cannot go back to {length}"
            )
        self.lengths[row] = length

    def keep(self, row: int, first: int, columns: Sequence[int]) -> None:
        """Forget the columns of a row from `first` on but those given, which move up in order."""
        for layer in self._layers:
            layer.move(row, first, columns)
        self.lengths[row] = first + len(columns)

    def states(self, row: int) -> list[tuple[Tensor, Tensor]]:
        """A copy of a row's keys and values, (H, columns, D) each, by layer."""
        return [layer.states(row, self.lengths[row]) for layer in self._layers]

    def restore(self, row: int, states: list[tuple[Tensor, Tensor]]) -> None:
        """Fill an empty row with what `states` gave."""
        for layer, (keys, values) in zip(self._layers, states, strict=True):
            layer.restore(row, keys, values)
        self.lengths[row] = states[0][0].shape[1]

    def erase_rest(self, row: int) -> None:
        """Zero the columns of a row that do not count; for NaN, which spreads though masked."""
        for layer in self._layers:
            layer.clear(row, self.lengths[row])

    def free(self, row: int) -> None:
        """Empty a row, so that another request can have it."""
        self.lengths[row] = 0
        self.erase_rest(row)


class RowLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of one layer: (B, H, capacity, D), sized by the first forward."""

    keys: Tensor
    values: Tensor

    def __init__(self, num_rows: int, max_length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_rows, self.max_length = num_rows, max_length
        self.placement: Placement | None = None
        self.first_capacity = 0
        """Columns that the storage begins with."""

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Empty storage for the heads of these states: (R, H, T, D) each."""
        self.keys = key_states.new_zeros(self._shape(key_states, self.first_capacity))
        self.values = value_states.new_zeros(self._shape(value_states, self.first_capacity))
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Store new states (R, H, T, D); returns those to attend to, (R, H, columns, D) each."""
        place = self.placement
        assert place is not None, "RowCache.place comes before every forward"
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._grow(place.num_columns)
        self._write(self.keys, key_states, place)
        self._write(self.values, value_states, place)
        if place.is_fresh:
            return key_states, value_states
        return self._read(self.keys, place), self._read(self.values, place)

    def _write(self, storage: Tensor, states: Tensor, place: Placement) -> None:
        if place.is_level and place.is_whole:
            # A slice takes half the time of an index for a few columns.
            storage[:, :, place.num_columns - states.shape[2] : place.num_columns] = states
        else:
            storage[place.rows[:, None], :, place.columns] = states.transpose(1, 2)

    def move(self, row: int, first: int, columns: Sequence[int]) -> None:
        """Copy columns of a row, ascending, to `first` and those behind it."""
        place = uploaded(torch.tensor(columns, dtype=torch.long), self.keys.device)
        for storage in (self.keys, self.values):
            storage[row, :, first : first + len(columns)] = storage[row].index_select(1, place)

    def states(self, row: int, length: int) -> tuple[Tensor, Tensor]:
        """A copy of a row's first columns: (H, length, D) each."""
        return self.keys[row, :, :length].clone(), self.values[row, :, :length].clone()

    def restore(self, row: int, keys: Tensor, values: Tensor) -> None:
        """Fill the first columns of a row."""
        if not self.is_initialized:
            self.lazy_initialization(keys[None], values[None])
        length = keys.shape[1]
        self._grow(length)
        self.keys[row, :, :length], self.values[row, :, :length] = keys, values

    def clear(self, row: int, start: int) -> None:
        """Zero one row from a column on."""
        if self.is_initialized:
            self.keys[row, :, start:].zero_()
            self.values[row, :, start:].zero_()

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(columns, first column) that a mask made by the model itself covers: level rows only."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """Columns before the announced forward, in the longest row."""
        if self.placement is None:
            return 0
        return self.placement.num_columns - self.placement.columns.shape[1]

    def get_max_length(self) -> int:
        """Most columns of a row."""
        return self.max_length

    def _grow(self, num_columns: int) -> None:
        capacity = self.keys.shape[2]
        if num_columns <= capacity:
            return
        wanted = min(max(num_columns, capacity + capacity // 2), self.max_length)
        self.keys = self._grown(self.keys, wanted)
        self.values = self._grown(self.values, wanted)

    def _grown(self, storage: Tensor, capacity: int) -> Tensor:
        larger = storage.new_zeros(self._shape(storage, capacity))
        larger[:, :, : storage.shape[2]] = storage
        return larger

    def _shape(self, states: Tensor, capacity: int) -> tuple[int, int, int, int]:
        return self.num_rows, states.shape[1], capacity, states.shape[3]

    def _read(self, storage: Tensor, place: Placement) -> Tensor:
        rows = storage if place.is_whole else storage[place.rows]
        return rows[:, :, : place.num_columns]
