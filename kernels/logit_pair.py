"""The logits of both models, read block by block as log-weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# B requests, V vocabulary, R rows of one read, C columns of one read.

BITS_PER_NAT = 1.0 / math.log(2.0)

PLAIN_LIMIT = 100.0
"""Logits within it are float64 exponents as they are. In float64 `exp` takes 0.37 ns a token where
`exp2` takes 0.70 (Xeon, MKL; Zen 4: 1.65 and 0.90)."""

PLAIN_RANGE = 80.0
"""Nats between the logits of a row such that float32 weights stay normal numbers: below, `exp`
takes up to 30 ns a token."""

CACHE_BYTES = 2**20
"""Scratch of one read, for each thread of torch: what stays in the second-level cache of a core
beside the logits. From 0.5 to 1.5 MiB a step takes the same time (Xeon, 2 MiB); beyond, longer."""

PIECE_SIZE = 4096
"""Columns whose weight is kept, so that a draw has to look at no more than one piece again."""

LANES = 64
"""Reads are padded to a multiple of it: torch computes the tail of a vector loop by another
routine, so without the padding a row's last digit would depend on its place in the batch."""

MASK_LIMIT = -1e30
"""Logits below it may overflow to -inf in float32 and are then masked like banned tokens."""


class Read(NamedTuple):
    """One block: some rows of the batch, some columns of the vocabulary."""

    columns: slice
    risky: Tensor
    """(R, number of columns), logits."""
    safe: Tensor
    """(R, number of columns), logits."""

    @property
    def pieces(self) -> slice:
        """Numbers of the pieces it covers."""
        return slice(self.columns.start // PIECE_SIZE, -(-self.columns.stop // PIECE_SIZE))


class RowGroup(NamedTuple):
    """Some rows, read together block by block; what all their blocks share is made once."""

    rows: Tensor | slice
    """(R,) int64, rows of the batch, or a slice of one row, which costs no copy."""
    is_plain: bool
    """Log-weights are in nats, in float64 the logits themselves; otherwise they are in bits."""
    places: slice
    """Their places in the list of rows asked for."""
    risky_shift: Tensor | float
    """(R, 1), of the dtype of the scratch, in bits; a plain row's is a number of nats."""
    safe_shift: Tensor | float
    block: Tensor
    """(R, num_slots, C) of the scratch of the pass; C is the padded number of columns."""
    slots: tuple[Tensor, ...]
    """The same, (R, C) each."""
    reads: list[Read]

    @property
    def unit(self) -> float:
        """Bits by which log-weights of this group are counted."""
        return BITS_PER_NAT if self.is_plain else 1.0

    def weights_(self, log_weights: Tensor) -> Tensor:
        """Log-weights of this group overwritten by the weights."""
        return log_weights.exp_() if self.is_plain else log_weights.exp2_()


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
    plain row all logits lie within PLAIN_LIMIT and PLAIN_RANGE, and a read holds no other row. That
    depends on nothing but the row, for the two ways to read one differ in the last digit."""
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
        if self.vocab_size <= PIECE_SIZE:
            return self.scratch(num_rows, num_slots, torch.float64)
        shape = (1, num_slots, PIECE_SIZE)
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
        starts = range(0, self.vocab_size, width)
        numbers = rows.tolist()
        first = None if pieces is None else pieces.mul(PIECE_SIZE).tolist()
        for start in range(0, len(numbers), rows_per_read):
            places = slice(start, min(start + rows_per_read, len(numbers)))
            row = numbers[start]
            members = slice(row, row + 1) if places.stop - start == 1 else rows[places]
            peaks = None if in_bits else self.plain_peaks[row]
            risky_shift, safe_shift = self._shifts(members, peaks, scratch.dtype)
            risky, safe = self.risky[members], self.safe[members]
            if first is not None:
                starts = range(first[start], first[start] + 1)
            columns = [slice(column, min(column + width, self.vocab_size)) for column in starts]
            block = scratch[: places.stop - start]
            yield RowGroup(
                rows=members,
                is_plain=peaks is not None,
                places=places,
                risky_shift=risky_shift,
                safe_shift=safe_shift,
                block=block,
                slots=block.unbind(1),
                reads=[Read(part, risky[:, part], safe[:, part]) for part in columns],
            )

    def _shifts(
        self, rows: Tensor | slice, peaks: tuple[float, float] | None, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor] | tuple[float, float]:
        if peaks is None:
            return self.risky_shift[rows].to(dtype), self.safe_shift[rows].to(dtype)
        # Float32 sums of the powers of a tilt far from 0 would lose its variance.
        return (0.0, 0.0) if dtype == torch.float64 else (-peaks[0], -peaks[1])

    def read_shared(self, group: RowGroup, read: Read, safe: Tensor, tilt: Tensor) -> None:
        """Log of the safe weight on the common support, and the tilt risky - safe.

        safe, tilt: (R, C), overwritten. Where either model bans a token, and in the padding, safe
        becomes -inf and tilt 0, so that no NaN can arise.
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


def piece_sums(values: Tensor, pieces: slice) -> Tensor:
    """Sums over each piece of a read: (R, C) to (R, number of pieces)."""
    sums = values.view(len(values), -1, min(values.shape[1], PIECE_SIZE)).sum(-1)
    return sums[:, : pieces.stop - pieces.start]


def read_logs(group: RowGroup, logits: Tensor, shift: Tensor | float, out: Tensor) -> Tensor:
    """Log-weights of some logits of a group, in its unit; -inf in the padding.

    shift: that of the group. out: (R, C), at least as wide as the logits; overwritten and returned.
    """
    inside, num_columns = out, logits.shape[1]
    if out.shape[1] > num_columns:
        inside = out[:, :num_columns]
        out[:, num_columns:] = -math.inf
    if out.dtype != logits.dtype:
        # An addition of two dtypes would make a temporary of its own.
        logits = inside.copy_(logits)
    if isinstance(shift, Tensor):
        torch.add(shift, logits, alpha=BITS_PER_NAT, out=inside)
    elif shift != 0.0 or logits is not inside:
        torch.add(logits, shift, out=inside)
    return out


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
