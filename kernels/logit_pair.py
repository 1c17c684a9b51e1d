"""The logits of both models, read block by block as float64 log-weights in bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# B requests, V vocabulary, R rows of one read, C columns of one read.

BITS_PER_NAT = 1.0 / math.log(2.0)
"""Log-weights are kept in bits: float64 exp2 takes 0.9 ns a token where exp takes 1.65 (Zen 4)."""

CACHE_BYTES = 3 * 2**19
"""Scratch of one read, for each thread of torch: what stays in the second-level cache of a core.
Where it does not, float64 work takes three times as long."""

PIECE_SIZE = 4096
"""Columns whose weight is kept, so that a draw has to look at no more than one piece again."""

LANES = 64
"""Reads are padded to a multiple of it: torch computes the tail of a vector loop by another
routine, so without the padding a row's last digit would depend on its place in the batch."""

MASK_LIMIT = -1e30
"""Logits below it may overflow to -inf in float32 and are then masked like banned tokens."""


class Read(NamedTuple):
    """One block: some rows of the batch, some columns of the vocabulary."""

    rows: Tensor | slice
    """(R,) int64, rows of the batch, or a slice of one row, which costs no copy."""
    group: slice
    """Their places in the list of rows asked for."""
    columns: slice
    block: Tensor
    """(R, num_slots, C) of the scratch of the pass; C is the padded number of columns."""
    slots: tuple[Tensor, ...]
    """The same, (R, C) each."""
    risky_shift: Tensor
    """(R, 1), of the dtype of the scratch."""
    safe_shift: Tensor
    """(R, 1), likewise."""

    @property
    def pieces(self) -> slice:
        """Numbers of the pieces it covers."""
        return slice(self.columns.start // PIECE_SIZE, -(-self.columns.stop // PIECE_SIZE))

    @property
    def num_columns(self) -> int:
        return int(self.columns.stop - self.columns.start)


@dataclass(frozen=True, slots=True)
class LogitPair:
    """Warped logits of both models over one vocabulary; 0 bits is each row's largest logit.

    A row is valid if both models give at least one finite logit and neither NaN nor +inf.
    """

    risky: Tensor
    """(B, V), any float dtype; -inf is a banned token."""
    safe: Tensor
    """(B, V), any float dtype."""
    risky_shift: Tensor
    """(B, 1) float64, minus the largest risky logit, in bits; 0 where the row is not valid."""
    safe_shift: Tensor
    """(B, 1) float64."""
    tilt_range: Tensor
    """(B,) float64, bits by which the tilts of two tokens that are not banned differ at most."""
    is_valid: Tensor
    """(B,) bool."""
    has_bans: bool
    """Some token of some row is banned, or below MASK_LIMIT, in one of the models."""

    @property
    def vocab_size(self) -> int:
        return self.safe.shape[1]

    @property
    def num_pieces(self) -> int:
        return -(-self.vocab_size // PIECE_SIZE)

    def rounding(self, rows: Tensor) -> Tensor:
        """(A,) float64, relative error bound of a sum of weights: additions and exponents."""
        offset = (self.risky_shift[rows, 0].abs() + self.safe_shift[rows, 0].abs()) / BITS_PER_NAT
        # In whatever order they are added; 64 stands for the few operations on each weight.
        return torch.finfo(torch.float64).eps * (self.vocab_size + 64 + offset)

    def scratch(self, num_rows: int, num_slots: int, dtype: torch.dtype) -> Tensor:
        """(rows of one read, num_slots, padded columns of one read), not initialised.

        num_rows: how many rows will be read. Several of them share a read only where each fits one
        piece. Which columns share one does not depend on the rows, so neither do sums over a row.

        It is made once for all reads: malloc returns buffers above its threshold to the kernel,
        and every page of the next one faults (measured: twice the time of a pass).
        """
        rows_per_read, num_columns = self._read_shape(num_slots * dtype.itemsize)
        shape = (max(1, min(rows_per_read, num_rows)), num_slots, padded(num_columns))
        return torch.empty(shape, dtype=dtype, device=self.safe.device)

    def reads(self, rows: Tensor, scratch: Tensor) -> Iterator[Read]:
        """The blocks that cover the given rows, (A,) int64, which must be valid."""
        num_rows, _, num_columns = scratch.shape
        block = scratch[:0]
        for start in range(0, len(rows), num_rows):
            group = slice(start, min(start + num_rows, len(rows)))
            members = _cheap_index(rows[group])
            shifts = [x[members].to(scratch.dtype) for x in (self.risky_shift, self.safe_shift)]
            for first in range(0, self.vocab_size, num_columns):
                columns = slice(first, min(first + num_columns, self.vocab_size))
                shape = (group.stop - start, scratch.shape[1], padded(columns.stop - first))
                if block.shape != shape:
                    block = scratch[: shape[0], :, : shape[2]]
                    slots = block.unbind(1)
                yield Read(members, group, columns, block, slots, *shifts)

    def windows(self, rows: Tensor, numbers: Tensor) -> tuple[LogitPair, Tensor]:
        """A copy of one piece of each row, and the column at which each copy starts.

        rows: (A,) int64. numbers: (A,) int64 of the pieces. The copies are of one width: that of a
        short last piece starts before it, with the tokens of the other piece banned.
        """
        width = min(PIECE_SIZE, self.vocab_size)
        first = (PIECE_SIZE * numbers).clamp_max(self.vocab_size - width)
        risky, safe = (_windows(x, rows, first, width) for x in (self.risky, self.safe))
        overlap = PIECE_SIZE * numbers - first
        is_cut = bool(overlap.any())
        if is_cut:
            is_other = torch.arange(width, device=rows.device) < overlap[:, None]
            risky, safe = (x.masked_fill(is_other, -math.inf) for x in (risky, safe))
        pair = LogitPair(
            risky=risky,
            safe=safe,
            risky_shift=self.risky_shift[rows],
            safe_shift=self.safe_shift[rows],
            tilt_range=self.tilt_range[rows],
            is_valid=self.is_valid[rows],
            has_bans=self.has_bans or is_cut,
        )
        return pair, first

    def _read_shape(self, bytes_per_token: int) -> tuple[int, int]:
        """How many rows and columns the scratch of one read may hold."""
        num_tokens = CACHE_BYTES * torch.get_num_threads() // bytes_per_token
        if self.vocab_size <= PIECE_SIZE:
            return max(1, num_tokens // padded(self.vocab_size)), self.vocab_size
        num_reads = -(-self.num_pieces // max(1, num_tokens // PIECE_SIZE))
        return 1, -(-self.num_pieces // num_reads) * PIECE_SIZE

    def read_safe(self, read: Read, out: Tensor) -> Tensor:
        """log2 of the safe weight of each token, at most 0; -inf in the padding.

        out: (R, C), C the columns of the read, padded; overwritten and returned.
        """
        return _read_bits(self.safe, read.safe_shift, read, out)

    def read_shared(self, read: Read, safe: Tensor, risky: Tensor, tilt: Tensor) -> None:
        """Log-weights on the common support, and the tilt risky - safe between the models, in bits.

        safe, risky, tilt: (R, C), overwritten. Where either model bans a token, and in the
        padding, safe and risky become -inf and tilt 0, so that no NaN can arise.
        """
        _read_bits(self.safe, read.safe_shift, read, safe)
        _read_bits(self.risky, read.risky_shift, read, risky)
        torch.sub(risky, safe, out=tilt)
        if tilt.shape[1] > read.num_columns:
            tilt[:, read.num_columns :] = 0.0
        if self.has_bans:
            outside = (safe == -math.inf) | (risky == -math.inf)
            tilt.masked_fill_(outside, 0.0)
            safe.masked_fill_(outside, -math.inf)
            risky.masked_fill_(outside, -math.inf)


def logit_pair(risky_logits: Tensor, safe_logits: Tensor) -> LogitPair:
    """Check two logit tensors and find the largest of every row.

    risky_logits, safe_logits: (B, V), any float dtype and strides, on one device.
    Raises: ValueError if the shapes differ or are empty, or a dtype is not a float type.
    """
    check_logits(risky_logits, safe_logits)
    risky, safe = _extremes(risky_logits), _extremes(safe_logits)
    return LogitPair(
        risky=risky_logits,
        safe=safe_logits,
        risky_shift=-risky.largest[:, None],
        safe_shift=-safe.largest[:, None],
        tilt_range=risky.largest - risky.smallest + safe.largest - safe.smallest,
        is_valid=risky.is_valid & safe.is_valid,
        has_bans=risky.has_bans or safe.has_bans,
    )


def piece_sums(values: Tensor) -> Tensor:
    """Sums over each piece of a read: (R, C) to (R, number of pieces)."""
    return values.view(len(values), -1, min(values.shape[1], PIECE_SIZE)).sum(-1)


def padded(num_columns: int) -> int:
    """The width of a read: the next multiple of LANES, from PIECE_SIZE on of that."""
    unit = PIECE_SIZE if num_columns > PIECE_SIZE else LANES
    return -(-num_columns // unit) * unit


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


class _Extremes(NamedTuple):
    """The largest and the smallest logit of each row that is not banned; (B,) float64 bits."""

    largest: Tensor
    smallest: Tensor
    is_valid: Tensor
    has_bans: bool


def _extremes(logits: Tensor) -> _Extremes:
    # amax carries NaN and +inf through, and is -inf only for a row without a token.
    largest, smallest = logits.amax(-1).double(), logits.amin(-1).double()
    is_valid = largest.isfinite()
    # Row by row: the NaN of one row must not hide the bans of another.
    has_bans = bool((smallest < MASK_LIMIT).any())
    if has_bans:
        limit = max(MASK_LIMIT, torch.finfo(logits.dtype).min)  # it overflows in float16
        smallest = torch.where(logits < limit, math.inf, logits).amin(-1).double()
    largest, smallest = (torch.where(is_valid, x, 0.0) * BITS_PER_NAT for x in (largest, smallest))
    return _Extremes(largest, smallest, is_valid, has_bans)


def _windows(logits: Tensor, rows: Tensor, first: Tensor, width: int) -> Tensor:
    if width == logits.shape[1]:
        return logits[rows]
    # Slices, for an index tensor takes 4 ns a token.
    starts = zip(rows.tolist(), first.tolist(), strict=True)
    return torch.stack([logits[row, start : start + width] for row, start in starts])


def _cheap_index(rows: Tensor) -> Tensor | slice:
    return slice(int(rows[0]), int(rows[0]) + 1) if len(rows) == 1 else rows


def _read_bits(logits: Tensor, shift: Tensor, read: Read, out: Tensor) -> Tensor:
    inside = out
    if out.shape[1] > read.num_columns:
        inside = out[:, : read.num_columns]
        out[:, read.num_columns :] = -math.inf
    block = logits[read.rows, read.columns]
    if out.dtype != logits.dtype:
        # An addition of two dtypes would make a temporary of its own.
        block = inside.copy_(block)
    torch.add(shift, block, alpha=BITS_PER_NAT, out=inside)
    return out
