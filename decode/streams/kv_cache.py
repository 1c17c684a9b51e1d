"""Rows of different lengths in one batch: their keys and values, and what each query may see."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import Cache, CacheLayerMixin


def uploaded(values: Tensor, device: torch.device) -> Tensor:
    """A tensor on the device; CUDA gets it through pinned memory, in the order of its work."""
    if device.type != "cuda" or values.device.type == "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


# B rows of the cache, R rows of one forward, T new columns, C columns of the cache, H heads, D head
# size.

Masks = Tensor | dict[str, Tensor]
"""Masks of all layers of a forward, or of each kind of layer, as the family takes them."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The place of one forward's keys and values, and what its queries may read."""

    rows: Tensor
    """(R,) int64, rows of the cache."""
    columns: Tensor
    """(R, T) int64, column of each new key; those past a row's new length are scratch."""
    num_columns: int
    """Columns that hold something in one of the rows after this forward."""
    is_level: bool
    """All rows start at the same column, so the model's causal mask is right."""
    is_fresh: bool
    """The rows were empty, so the new keys are all that there is to read."""
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

    def prepare(self, rows: Sequence[int], num_new: int, device: torch.device) -> Placement:
        """Announce a forward of `num_new` columns after the ends of these rows."""
        starts = [self.lengths[row] for row in rows]
        num_columns = max(starts) + num_new
        assert num_columns <= self.max_length, f"{num_columns} columns of {self.max_length}"
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

    def advance(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """Move each row's pointer past its `counts` new columns."""
        for row, count in zip(rows, counts, strict=True):
            self.lengths[row] += count

    def roll_back(self, row: int, length: int) -> None:
        """Forget the columns of a row from `length` on."""
        assert 0 <= length <= self.lengths[row], f"row {row} cannot go back to {length} columns"
        self.lengths[row] = length

    def keep(self, row: int, first: int, columns: Sequence[int]) -> None:
        """Forget the columns of a row from `first` on but `columns`, ascending, which move up."""
        index = torch.tensor(columns, dtype=torch.long)
        for layer in self._layers:
            for storage in (layer.keys, layer.values):
                kept = storage[row].index_select(1, uploaded(index, storage.device))
                storage[row, :, first : first + len(columns)] = kept
        self.lengths[row] = first + len(columns)

    def states(self, row: int) -> list[tuple[Tensor, Tensor]]:
        """A copy of a row's keys and values, (H, columns, D) each, by layer."""
        part = row, slice(None), slice(self.lengths[row])
        return [(layer.keys[part].clone(), layer.values[part].clone()) for layer in self._layers]

    def restore(self, row: int, states: list[tuple[Tensor, Tensor]]) -> None:
        """Fill an empty row with what `states` gave."""
        self.lengths[row] = length = states[0][0].shape[1]
        for layer, (keys, values) in zip(self._layers, states, strict=True):
            layer.make_room(keys[None], values[None], length)
            layer.keys[row, :, :length], layer.values[row, :, :length] = keys, values

    @torch.inference_mode()
    def copy(self, row: int, others: Sequence[int]) -> None:
        """Let other rows, which are free, hold what this one holds."""
        states = self.states(row)
        for other in others:
            self.restore(other, states)

    def erase_rest(self, row: int) -> None:
        """Zero the columns of a row that do not count; for NaN, which spreads though masked."""
        for layer in self._layers:
            if layer.is_initialized:
                layer.keys[row, :, self.lengths[row] :].zero_()
                layer.values[row, :, self.lengths[row] :].zero_()

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

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Empty storage for the heads of these states: (R, H, T, D) each."""
        shape = (self.num_rows, key_states.shape[1], 0)
        self.keys = key_states.new_zeros(*shape, key_states.shape[3])
        self.values = value_states.new_zeros(*shape, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Store new states (R, H, T, D); returns those to attend to, (R, H, columns, D) each."""
        placement = self.placement
        assert placement is not None, "RowCache.prepare comes before every forward"
        self.make_room(key_states, value_states, placement.num_columns)
        for storage, states in ((self.keys, key_states), (self.values, value_states)):
            if placement.is_level and placement.is_whole:
                # A slice takes half the time of an index for a few columns.
                first = placement.num_columns - states.shape[2]
                storage[:, :, first : placement.num_columns] = states
            else:
                storage[placement.rows[:, None], :, placement.columns] = states.transpose(1, 2)
        if placement.is_fresh:
            return key_states, value_states
        keys, values = self.keys, self.values
        if not placement.is_whole:
            keys, values = keys[placement.rows], values[placement.rows]
        return keys[:, :, : placement.num_columns], values[:, :, : placement.num_columns]

    def make_room(self, key_states: Tensor, value_states: Tensor, num_columns: int) -> None:
        """Have storage of so many columns for states like these."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if (capacity := self.keys.shape[2]) < num_columns:
            wanted = min(max(num_columns, capacity + capacity // 2), self.max_length)
            new = (0, 0, 0, wanted - capacity)
            # One after the other: the old keys are freed before the values are copied.
            self.keys = functional.pad(self.keys, new)
            self.values = functional.pad(self.values, new)

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


@dataclass(frozen=True, kw_only=True, slots=True)
class RowAttention:
    """The masks that a model takes for rows of different lengths."""

    layer_types: tuple[str, ...]
    """Kinds of layers: full_attention, sliding_attention, chunked_attention."""
    span: int | None
    """Window or chunk, in tokens, of the layers that have one."""
    takes_mapping: bool
    """The model takes a dict of masks by layer type instead of one mask."""
    reach: int | None
    """Longest sequence for which unequal rows may share a forward; longer ones are decoded
    alone."""
    keeps_modules: bool = False
    """Use transformers' modules although lean layers exist for this family."""

    def covers(self, length: int) -> bool:
        """True if sequences of this many tokens can be decoded."""
        return self.reach is None or length <= self.reach

    def masks(self, positions: Tensor, num_columns: int, dtype: torch.dtype) -> Masks:
        """Additive masks (R, 1, T, C): 0 where a query may look, the lowest number elsewhere.

        positions: (R, T) int64, column of each query. Additive because eager attention misreads
        boolean masks; with the span built in because a 4-D mask replaces the model's.
        """
        columns = torch.arange(num_columns, device=positions.device)
        is_past = columns <= positions[..., None]
        return self.tree_masks(is_past, positions, columns.expand(len(positions), -1), dtype)

    def tree_masks(
        self, is_ancestor: Tensor, positions: Tensor, key_positions: Tensor, dtype: torch.dtype
    ) -> Masks:
        """The same where each query sees only some of the columns, whose order is no position.

        is_ancestor: (R, T, C) bool. positions: (R, T), key_positions: (R, C) int64; the latter is
        read where there is a span.
        """
        is_visible = dict.fromkeys(self.layer_types, is_ancestor[:, None])
        if self.span is not None:
            query, key = positions[:, None, :, None], key_positions[:, None, None, :]
            for kind, seen in is_visible.items():
                if kind == "sliding_attention":
                    is_visible[kind] = seen & (key > query - self.span)
                elif kind == "chunked_attention":
                    is_visible[kind] = seen & (key // self.span == query // self.span)
        lowest = torch.finfo(dtype).min
        masks = {
            kind: torch.zeros_like(where, dtype=dtype).masked_fill_(~where, lowest)
            for kind, where in is_visible.items()
        }
        return masks if self.takes_mapping else masks[self.layer_types[0]]
