"""The logits of both models, read block by block as log-weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .row_group import BITS_PER_NAT, PIECE_SIZE, Read, RowGroup, read_logs

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
"""Scratch of one read, for each thread of torch: what stays in the second-level cache of a core
beside the logits. From 0.5 to 1.5 MiB a step takes the same time (Xeon, 2 MiB); beyond, longer."""

LANES = 64
"""Reads are padded to a multiple of it: torch computes the tail of a vector loop by another
routine, so without the padding a row's last digit would depend on its place in the batch."""

MASK_LIMIT = -1e30
"""Logits below it may overflow to -inf in float32 and are then masked like banned tokens."""


@dataclass(frozen=True, slots=True)
class LogitPair:
    """Warped logits of both models over one vocabulary; 0 bits is each row's largest logit, or in
    a plain row a logit of 0.

    A row is valid if both models give at least one finite logit and neither NaN nor +inf.
    """

    risky: Tensor
    """(B, V), any float dtype; -inf is a banned token."""
    safe: Tensor
    """(B, V), any float dtype."""
    risky_shift: Tensor
    """(B, 1) float64, minus the largest risky logit, in bits; 0 where the row is plain or not
    valid."""
    safe_shift: Tensor
    """(B, 1) float64."""
    tilt_range: Tensor
    """(B,) float64, bits by which the tilts of two tokens that are not banned differ at most."""
    is_valid: Tensor
    """(B,) bool."""
    plain_peaks: Sequence[tuple[float, float] | None]
    """The largest risky logit and the largest safe one of the plain rows, None for the others. In a
    plain row all logits lie within the limits above, and a read holds no other row. That depends on
    nothing but the row, for the two ways to read one differ in the last digit."""
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
        # In whatever order they are added; the limit stands for the few operations on each weight.
        return torch.finfo(torch.float64).eps * (self.vocab_size + 4.0 * PLAIN_LIMIT + offset)

    def scratch(
        self, num_rows: int, num_slots: int, dtype: torch.dtype, unit: int = LANES
    ) -> Tensor:
        """(rows of one read, num_slots, padded columns of one read), not initialised.

        num_rows: how many rows will be read. Several of them share a read only where each fits one
        piece. Which columns share one does not depend on the rows, so neither do sums over a row.
        unit: reads start at multiples of it; PIECE_SIZE for `piece_sums`.

        It is made once for all reads: malloc returns buffers above its threshold to the kernel,
        and every page of the next one faults (measured: twice the time of a pass).
        """
        num_tokens = CACHE_BYTES * torch.get_num_threads() // (num_slots * dtype.itemsize)
        width = _padded(self.vocab_size, LANES)
        rows_per_read = max(1, min(num_tokens // width, num_rows))
        if self.vocab_size > PIECE_SIZE:
            num_reads = -(-width // max(unit, num_tokens))
            width, rows_per_read = _padded(-(-width // num_reads), unit), 1
        shape = (rows_per_read, num_slots, width)
        return torch.empty(shape, dtype=dtype, device=self.safe.device)

    def piece_scratch(self, num_rows: int, num_slots: int) -> Tensor:
        """The same in float64 for reads of one piece a row."""
        return self._scratch_of_one(num_rows, num_slots, PIECE_SIZE)

    def row_scratch(self, num_rows: int, num_slots: int) -> Tensor:
        """The same in float64 for reads of whole rows, one of them where it exceeds a piece."""
        return self._scratch_of_one(num_rows, num_slots, _padded(self.vocab_size, LANES))

    def _scratch_of_one(self, num_rows: int, num_slots: int, width: int) -> Tensor:
        if self.vocab_size <= PIECE_SIZE:
            return self.scratch(num_rows, num_slots, torch.float64)
        shape = (1, num_slots, width)
        return torch.empty(shape, dtype=torch.float64, device=self.safe.device)

    def row_groups(
        self,
        rows: Tensor,
        scratch: Tensor,
        *,
        pieces: Tensor | None = None,
        in_bits: bool = False,
    ) -> Iterator[RowGroup]:
        """The given rows, (A,) int64, which must be valid, with the blocks that cover them.

        pieces: (A,) int64, with a scratch of `piece_scratch`: one piece of each row and no more.
        in_bits: read plain rows like others.
        """
        rows_per_read, _, width = scratch.shape
        numbers = rows.tolist()
        first = None if pieces is None else pieces.mul(PIECE_SIZE).tolist()
        for start in range(0, len(numbers), rows_per_read):
            places = slice(start, min(start + rows_per_read, len(numbers)))
            row = numbers[start]
            members = slice(row, row + 1) if places.stop - start == 1 else rows[places]
            peaks = None if in_bits else self.plain_peaks[row]
            risky_shift, safe_shift = self._shifts(members, peaks, scratch.dtype)
            columns = slice(0, self.vocab_size)
            if first is not None:
                columns = slice(first[start], min(first[start] + width, self.vocab_size))
            blocks = (torch.split(x[members, columns], width, 1) for x in (self.risky, self.safe))
            starts = range(columns.start, columns.stop, width)
            block = scratch[: places.stop - start]
            yield RowGroup(
                rows=members,
                is_plain=peaks is not None,
                places=places,
                risky_shift=risky_shift,
                safe_shift=safe_shift,
                block=block,
                slots=block.unbind(1),
                reads=[Read(*read) for read in zip(starts, *blocks, strict=True)],
            )

    def _shifts(
        self, rows: Tensor | slice, peaks: tuple[float, float] | None, dtype: torch.dtype
    ) -> tuple[Tensor | None, Tensor | None]:
        if peaks is None:
            return self.risky_shift[rows].to(dtype), self.safe_shift[rows].to(dtype)
        if dtype == torch.float64:
            return None, None
        # Float32 sums of the powers of a tilt far from 0 would lose its variance.
        risky, safe = torch.tensor(peaks, dtype=dtype, device=self.safe.device).neg()[:, None, None]
        return risky, safe

    def read_shared(self, group: RowGroup, read: Read, safe: Tensor, tilt: Tensor) -> None:
        """Log of the safe weight on the common support, and the tilt risky - safe.

        safe, tilt: (R, C), overwritten. Where either model bans a token, safe becomes -inf and tilt
        0, so that no NaN can arise; so it does in the padding, but for `read_logs`.
        """
        read_logs(group, read.safe, group.safe_shift, safe)
        read_logs(group, read.risky, group.risky_shift, tilt)
        may_ban = self.has_bans and not group.is_plain
        outside = (safe == -math.inf) | (tilt == -math.inf) if may_ban else None
        tilt.sub_(safe)
        num_columns = read.safe.shape[1]
        if tilt.shape[1] > num_columns:
            tilt[:, num_columns:] = 0.0
        if outside is not None:
            tilt.masked_fill_(outside, 0.0)
            safe.masked_fill_(outside, -math.inf)


@np.errstate(invalid="ignore")
def logit_pair(risky_logits: Tensor, safe_logits: Tensor) -> LogitPair:
    """Check two logit tensors and find the largest of every row.

    risky_logits, safe_logits: (B, V), any float dtype and strides, on one device.
    Raises: ValueError if the shapes differ or are empty, or a dtype is not a float type.
    """
    check_logits(risky_logits, safe_logits)
    pair = (risky_logits, safe_logits)
    # amax carries NaN and +inf through, and is -inf only for a row without a token.
    extremes = torch.stack([x.amax(-1) for x in pair] + [x.amin(-1) for x in pair])
    largest, smallest = extremes.double().cpu().numpy().reshape(2, 2, -1)
    is_valid = np.isfinite(largest)
    # Row by row: the NaN of one row must not hide the bans of another.
    has_bans = bool((smallest < MASK_LIMIT).any())
    is_plain = (largest <= PLAIN_LIMIT) & (smallest >= -PLAIN_LIMIT)
    is_plain = (is_plain & (largest - smallest <= PLAIN_RANGE)).all(0)
    is_plain &= np.abs(largest[0] - largest[1]) <= PLAIN_OFFSET
    is_plain &= safe_logits.shape[1] > PIECE_SIZE
    peaks = zip(is_plain.tolist(), *largest.tolist(), strict=True)
    if has_bans:
        smallest = torch.stack([_smallest_allowed(x) for x in pair]).cpu().numpy()
    largest, smallest = (np.where(is_valid, x, 0.0) * BITS_PER_NAT for x in (largest, smallest))
    facts = np.array([*np.where(is_plain, 0.0, -largest), (largest - smallest).sum(0)])
    risky_shift, safe_shift, tilt_range = torch.from_numpy(facts).to(safe_logits.device)
    return LogitPair(
        risky=risky_logits,
        safe=safe_logits,
        risky_shift=risky_shift[:, None],
        safe_shift=safe_shift[:, None],
        tilt_range=tilt_range,
        is_valid=torch.from_numpy(is_valid.all(0)).to(safe_logits.device),
        plain_peaks=[(risky, safe) if plain else None for plain, risky, safe in peaks],
        has_bans=has_bans,
    )


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


def _smallest_allowed(logits: Tensor) -> Tensor:
    limit = max(MASK_LIMIT, torch.finfo(logits.dtype).min)  # it overflows in float16
    return torch.where(logits < limit, math.inf, logits).amin(-1).double()


def _padded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
