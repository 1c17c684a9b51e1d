"""The logits of both models, read block by block as log-weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .row_group import BAN_BITS, BITS_PER_NAT, PIECE_SIZE, Read, RowGroup, Scratch, Slots
from .spend import BAN_GAP, EPSILON

# B requests, V vocabulary, R rows of one read, C columns of one read.

PLAIN_LIMIT = 100.0
"""Logits within it are float64 exponents as they are. In float64 `exp` takes 0.37 ns a token where
`exp2` takes 0.70 (Xeon, MKL; Zen 4: 1.65 and 0.90)."""

PLAIN_OFFSET = 20.0
"""Nats between the peaks of both models: the bound on rounding errors grows with the tilts."""

PLAIN_RANGE = 80.0
"""Nats between the logits of a row such that float32 weights stay normal numbers: below, `exp`
takes up to 30 ns a token."""

CACHE_BYTES = 2**20
"""What a read of NUM_SLOTS float64 takes, for each thread of torch: what stays in the second-level
cache of a core beside the logits. From 0.5 to 1.5 MiB a step takes the same time (Xeon, 2 MiB);
beyond, longer."""

NUM_SLOTS = 5
"""What the pass that certifies a weight has, and about what the first one takes."""

LANES = 64
"""Reads are padded to a multiple of it: torch computes the tail of a vector loop by another
routine, so without the padding a row's last digit would depend on its place in the batch."""


@dataclass(frozen=True, slots=True)
class LogitPair:
    """Warped logits of both models over one vocabulary; 0 bits is each row's largest logit, or in
    a plain row a logit of 0.

    A row is valid if both models give at least one finite logit and neither NaN nor +inf.
    """

    risky: Tensor
    """(B, V), any float dtype; -inf is a banned token, and so is one that lies BAN_GAP below the
    largest of its row."""
    safe: Tensor
    """(B, V), any float dtype."""
    risky_peak: Tensor
    """(B, 1) float64, the risky logit that weighs 1: the largest, or 0 in rows plain or not
    valid."""
    safe_peak: Tensor
    """(B, 1) float64."""
    tilt_range: Tensor
    """(B,) float64, bits by which the tilts of two tokens that are not banned differ at most."""
    is_valid: Tensor
    """(B,) bool."""
    plain_peaks: Sequence[tuple[Tensor, Tensor] | None]
    """The largest logit of either model, risky first, (1,) float32 each, in the plain rows, None in
    the others. In a plain row all logits lie within the limits above, and a read
    holds no other row. That depends on nothing but the row, for the two ways to read one differ in
    the last digit."""
    has_bans: bool
    """Some token of some row is banned in one of the models."""
    read_shape: tuple[int, int]
    """`read_shape` of the vocabulary."""
    groups_of_one: dict[int, RowGroup] = field(default_factory=dict)
    """Rows that are read alone, with their blocks, which many passes share."""

    @property
    def vocab_size(self) -> int:
        return self.safe.shape[1]

    @property
    def num_pieces(self) -> int:
        return -(-self.vocab_size // PIECE_SIZE)

    @property
    def rounding(self) -> float:
        """Relative error bound of a sum of weights: additions, in any order, and exponents."""
        # The limit stands for the few operations on each weight, plain logits being the largest.
        return (self.vocab_size + 4.0 * PLAIN_LIMIT) * EPSILON

    def scratch(
        self,
        num_rows: int,
        num_slots: int,
        cut: Callable[[Tensor, int], Slots],
        dtype: torch.dtype = torch.float64,
    ) -> Scratch[Slots]:
        """Memory to read `row_groups` or `piece_groups`, not initialised.

        cut: (R, num_slots, W) and C -> what a read computes on.
        """
        rows_per_read, width = self.read_shape
        # Not a multiple of 4 KiB apart: a load would wait for the store to another slot whose
        # address agrees in the last 12 bits (copies took twice the time).
        spacing = width + LANES if rows_per_read == 1 else width
        shape = (num_slots, min(num_rows, rows_per_read), spacing)
        memory = torch.empty(shape, dtype=dtype, device=self.safe.device)
        return Scratch(memory[..., :width].transpose(0, 1), cut)

    def row_scratch(self, num_rows: int, num_slots: int) -> Tensor:
        """(rows of a read, num_slots, padded columns) float64 for `whole_row_groups`."""
        rows_per_read, _ = self.read_shape
        shape = (min(num_rows, rows_per_read), num_slots, _padded(self.vocab_size, LANES))
        return torch.empty(shape, dtype=torch.float64, device=self.safe.device)

    def row_groups(self, rows: Tensor) -> Iterator[tuple[slice, RowGroup]]:
        """The given rows, (A,) int64, which must be valid, with the blocks that cover them.

        Yields the places of some of them in the list, and these rows.
        """
        for places, members in self._parts(rows):
            if isinstance(members, Tensor):
                yield places, self._group(members, self._blocks(members))
                continue
            row = members.start
            if row not in self.groups_of_one:
                self.groups_of_one[row] = self._group(members, self._blocks(members))
            yield places, self.groups_of_one[row]

    def piece_groups(self, rows: Tensor, pieces: Sequence[int]) -> Iterator[tuple[slice, RowGroup]]:
        """One piece of each row in one read; in reads of several rows all pieces are 0."""
        size = min(self.read_shape[1], PIECE_SIZE)
        for places, members in self._parts(rows):
            start = PIECE_SIZE * pieces[places.start]
            columns = slice(start, min(start + size, self.vocab_size))
            risky, safe = self.risky[members, columns], self.safe[members, columns]
            read = Read(columns, columns.stop - start, size, risky, safe)
            yield places, self._group(members, [read])

    def whole_row_groups(self, rows: Tensor) -> Iterator[tuple[slice, RowGroup]]:
        """Each row in one read, log-weights in bits."""
        for places, members in self._parts(rows):
            read = Read(
                columns=slice(0, self.vocab_size),
                num_columns=self.vocab_size,
                width=_padded(self.vocab_size, LANES),
                risky=self.risky[members],
                safe=self.safe[members],
            )
            yield places, self._bit_group(members, [read])

    def _parts(self, rows: Tensor) -> Iterator[tuple[slice, Tensor | slice]]:
        rows_per_read, _ = self.read_shape
        numbers = rows.tolist()
        for start in range(0, len(numbers), rows_per_read):
            places = slice(start, min(start + rows_per_read, len(numbers)))
            row = numbers[start]
            is_one = places.stop - start == 1
            yield places, slice(row, row + 1) if is_one else rows[places]

    def _blocks(self, members: Tensor | slice) -> list[Read]:
        _, width = self.read_shape
        starts = range(0, self.vocab_size, width)
        sizes = [min(width, self.vocab_size - start) for start in starts]
        # `split` is Python and takes 8 us.
        blocks = (x[members].split_with_sizes(sizes, 1) for x in (self.risky, self.safe))
        return [
            Read(slice(start, start + size), size, _padded(size, LANES), risky, safe)
            for start, size, risky, safe in zip(starts, sizes, *blocks, strict=True)
        ]

    def _group(self, members: Tensor | slice, reads: list[Read]) -> RowGroup:
        peaks = self.plain_peaks[members.start] if isinstance(members, slice) else None
        if peaks is None:
            return self._bit_group(members, reads)
        risky_peak, safe_peak = peaks
        return RowGroup(members, 1, True, risky_peak, safe_peak, reads)

    def _bit_group(self, members: Tensor | slice, reads: list[Read]) -> RowGroup:
        risky_peak, safe_peak = self.risky_peak[members], self.safe_peak[members]
        return RowGroup(members, len(risky_peak), False, risky_peak, safe_peak, reads)

    def read_shared(
        self, group: RowGroup, read: Read, safe: Tensor, tilt: Tensor, risky: Tensor | None = None
    ) -> None:
        """Log-weights on the common support, and the tilt risky - safe.

        safe, tilt and, if wanted, risky: (R, C), overwritten. Where a token is banned, and in the
        padding but for `RowGroup.read_safe`, they are -inf and the tilt 0: no NaN can arise.
        """
        group.read_safe(read, safe)
        its_risky = group.read_risky(read, tilt if risky is None else risky)
        may_ban = self.has_bans and not group.is_plain
        outside = (safe < BAN_BITS) | (its_risky < BAN_BITS) if may_ban else None
        torch.sub(its_risky, safe, out=tilt)
        if read.is_padded:
            tilt[:, read.num_columns :] = 0.0
        if outside is not None:
            tilt.masked_fill_(outside, 0.0)
            for log_weights in (safe,) if risky is None else (safe, risky):
                log_weights.masked_fill_(outside, -math.inf)


def logit_pair(risky_logits: Tensor, safe_logits: Tensor) -> LogitPair:
    """Check two logit tensors and find the largest of every row.

    risky_logits, safe_logits: (B, V), any float dtype and strides, on one device.
    Raises: ValueError if the shapes differ or are empty, or a dtype is not a float type.
    """
    check_logits(risky_logits, safe_logits)
    pair, device = (risky_logits, safe_logits), safe_logits.device
    ends = torch.cat(_extremes(pair)).double().view(2, 2, -1).permute(2, 0, 1).tolist()
    largest, smallest = [x for x, _ in ends], [x for _, x in ends]
    # Row by row: the NaN of one row must not hide the bans of another.
    has_bans = any(_has_bans(*row) for row in ends)
    is_long = safe_logits.shape[1] > PIECE_SIZE
    is_plain = [is_long and _is_plain(*row) for row in ends]
    if has_bans:
        peaks = torch.tensor(largest, dtype=torch.float64, device=device).T[..., None]
        allowed = [_smallest_allowed(*x) for x in zip(pair, peaks, strict=True)]
        smallest = torch.stack(allowed, 1).tolist()
    facts = [_row_facts(*row) for row in zip(largest, smallest, is_plain, strict=True)]
    columns = torch.tensor(facts, dtype=torch.float64, device=device).view(-1, 3)
    risky_peak, safe_peak, tilt_range = columns.T.contiguous()
    is_valid = [all(map(math.isfinite, tops)) for tops in largest]
    return LogitPair(
        risky=risky_logits,
        safe=safe_logits,
        risky_peak=risky_peak[:, None],
        safe_peak=safe_peak[:, None],
        tilt_range=tilt_range,
        is_valid=torch.tensor(is_valid, device=device),
        plain_peaks=_plain_peaks(largest, is_plain, device),
        has_bans=has_bans,
        read_shape=read_shape(safe_logits.shape[1]),
    )


def _has_bans(largest: Sequence[float], smallest: Sequence[float]) -> bool:
    """largest, smallest: of both models, nats."""
    return any(top - low > BAN_GAP for top, low in zip(largest, smallest, strict=True))


def _smallest_allowed(logits: Tensor, peak: Tensor) -> Tensor:
    """(B,) float64, of the tokens that are not banned; peak: (B, 1) float64, the largest."""
    above = logits.double() - peak
    return peak[:, 0] + above.masked_fill_(above < -BAN_GAP, 0.0).amin(-1)


def _is_plain(largest: Sequence[float], smallest: Sequence[float]) -> bool:
    """largest, smallest: of both models, nats; NaN and infinities are not within the limits."""
    (risky, safe), ends = largest, zip(largest, smallest, strict=True)
    is_near = abs(risky - safe) <= PLAIN_OFFSET
    return is_near and all(
        top <= PLAIN_LIMIT and low >= -PLAIN_LIMIT and top - low <= PLAIN_RANGE for top, low in ends
    )


def _row_facts(
    largest: Sequence[float], smallest: Sequence[float], is_plain: bool
) -> tuple[float, float, float]:
    """Both peaks in nats, the range of the tilts in bits.

    largest, smallest: of the tokens allowed.
    """
    # A model without a finite logit, whose row is not valid, counts as one whose logits are 0.
    risky, safe = (
        (top, low) if math.isfinite(top) else (0.0, 0.0)
        for top, low in zip(largest, smallest, strict=True)
    )
    tilt_range = (risky[0] - risky[1] + safe[0] - safe[1]) * BITS_PER_NAT
    if is_plain:
        return 0.0, 0.0, tilt_range
    return risky[0], safe[0], tilt_range


def read_shape(vocab_size: int) -> tuple[int, int]:
    """How many rows share a read, and columns: several rows only where each fits one piece.

    Which columns share one does not depend on the rows, so neither do sums over a row.
    """
    num_tokens = CACHE_BYTES * torch.get_num_threads() // (NUM_SLOTS * torch.float64.itemsize)
    width = _padded(vocab_size, LANES)
    if width <= PIECE_SIZE:
        # Longer reads than of one row pay: 64 rows of 4,000 tokens take a tenth less time.
        return 2 * num_tokens // width, width
    num_reads = -(-width // num_tokens)
    return 1, _padded(-(-width // num_reads), PIECE_SIZE)


def check_logits(risky_logits: Tensor, safe_logits: Tensor) -> None:
    """Raise ValueError unless both are (B, V) of a float dtype, V >= 1, on one device."""
    if risky_logits.ndim != 2 or risky_logits.shape != safe_logits.shape:
        raise ValueError(
            f"risky_logits and safe_logits must both be (B, V), "
            f"got {tuple(risky_logits.shape)} and {tuple(safe_logits.shape)}"
        )
    if safe_logits.shape[1] == 0:
        raise ValueError("the vocabulary must hold at least 1 token, got 0")
    for logits in (risky_logits, safe_logits):
        if not logits.dtype.is_floating_point:
            raise ValueError(f"logits must have a float dtype, got {logits.dtype}")
    if risky_logits.device != safe_logits.device:
        raise ValueError(
            f"both logits must be on one device, got {risky_logits.device} and {safe_logits.device}"
        )


def _extremes(pair: tuple[Tensor, Tensor]) -> list[Tensor]:
    """The largest logit of each row, risky first, then the smallest, while the row is in the cache.

    The first rows are read last, as they are needed next. amax carries NaN and +inf through, and is
    -inf only for a row without a token.
    """
    step = max(1, CACHE_BYTES // (2 * pair[0].shape[1] * pair[0].itemsize))
    starts = range(0, max(1, len(pair[0])), step)
    parts = [[x[start : start + step] for x in pair] for start in reversed(starts)]
    ends = [[(x.amax(-1), x.amin(-1)) for x in part] for part in parts][::-1]
    return [end[model][side] for side in (0, 1) for model in (0, 1) for end in ends]


def _plain_peaks(
    largest: list[list[float]], is_plain: list[bool], device: torch.device
) -> list[tuple[Tensor, Tensor] | None]:
    peaks = torch.tensor(largest, dtype=torch.float32, device=device).view(-1, 2, 1)
    risky, safe = peaks[:, 0].unbind(), peaks[:, 1].unbind()
    rows = zip(is_plain, zip(risky, safe, strict=True), strict=True)
    return [both if plain else None for plain, both in rows]


def _padded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
