"""Rows of both models' logits as float64 log2-weights: what the solvers in torch compute on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..certificate import FLOOR_MARGIN, LEAST_BITS, WEIGHT_ROUNDINGS
from ..spend import BAN_BITS, BAN_GAP, BITS_PER_NAT, EPSILON

# B requests, V vocabulary; R rows read together, N pieces of a row, C columns of a piece.

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]

GROUP_SIZE = 2**18
"""Numbers of one matrix, unless a single row is longer. Calls cost little next to them, and seven
such matrices, 15 MB, lie in a processor's last cache: 2**20 takes twice as long again."""

PIECE_SIZE = 4096
"""Columns whose weight is kept, so that a draw has to look at no more than one piece again."""

LANES = 64
"""Pieces are padded to a multiple of it: torch computes the tail of a vector loop by another
routine, so without the padding a row's last digit would depend on its index in the batch."""

OFF_SUPPORT = 4.0 * BAN_BITS
"""Bits of a weight that is 0, finite so that no NaN can arise. On the support, bits and tilt lie
within BAN_BITS of 0."""


@dataclass(frozen=True, slots=True)
class Rows:
    """R rows. A weight is 2**bits, with 0 bits for the row's largest logit of that model; the
    padding weighs nothing. A row that is not valid holds one bit everywhere, without a tilt."""

    rounding: float
    """Relative error bound of a sum of weights: additions, in any order, and exponents."""
    is_valid: Flags
    """(R,)."""
    risky_peak: Floats
    """(R,) nats, the largest logit; 0 in rows not valid."""
    safe_peak: Floats
    safe: Tensor
    """(R, N, C) bits of the safe model."""
    shared: Tensor
    """The same, at most OFF_SUPPORT where either bans the token; the same memory where none is."""
    tilt: Tensor
    """(R, N, C) bits, risky - safe; 0 where a token is banned."""
    scratch: Tensor
    """(4, R, N, C) float64, to be written over."""
    safe_pieces: Tensor
    """(R, N), the safe model's weight in each piece."""
    shared_mass: Floats
    """(R,), its weight on the common support."""
    floor: Floats
    """(R,) nats, -log p_s(common support) rounded up; inf where that is too small to be known."""

    @property
    def log2_safe_mass(self) -> Floats:
        """(R,), of all tokens."""
        bits: Floats = np.log2(sums(self.safe_pieces))
        return bits

    @property
    def log2_shared(self) -> Floats:
        bits: Floats = np.log2(self.shared_mass)
        return bits


class Solution(NamedTuple):
    """The solutions of R rows, (R,) each, named in `projection.Projection`."""

    weight: Floats
    spend: Floats
    """Nats, not yet rounded up to the quantum."""
    slope: Floats
    offset: Floats
    ceiling: Floats
    is_safe_only: Flags
    token_most: Floats
    """Both of `Projection.token_bounds`; 0 of KL, which charges no token."""
    token_margin: Floats


def safe_solution(num_rows: int) -> Solution:
    """p* = p_s everywhere."""
    weight, spend, slope, offset, most, margin = np.zeros((6, num_rows))
    ceiling, is_safe_only = np.full(num_rows, np.inf), np.ones(num_rows, dtype=np.bool_)
    return Solution(weight, spend, slope, offset, ceiling, is_safe_only, most, margin)


def row_groups(risky_logits: Tensor, safe_logits: Tensor) -> Iterator[tuple[slice, Rows]]:
    """The rows of (B, V) logits in groups; the next one overwrites the memory of the last."""
    num_rows, vocab_size = safe_logits.shape
    num_pieces = -(-vocab_size // PIECE_SIZE)
    width = -(-vocab_size // (num_pieces * LANES)) * LANES
    step = max(1, GROUP_SIZE // (num_pieces * width))
    # Made once: malloc returns large buffers to the kernel, and every page of a new one faults.
    shape = (7, min(step, num_rows), num_pieces, width)
    memory = torch.empty(shape, dtype=torch.float64)
    for start in range(0, num_rows, step):
        rows = slice(start, min(start + step, num_rows))
        size = rows.stop - start
        yield rows, _read(risky_logits[rows], safe_logits[rows], memory[:, :size])


def sums(values: Tensor) -> Floats:
    """(R, N) or (R, N, C) -> (R,); the same digits for a row in any batch."""
    pieces = host(values if values.ndim == 2 else values.sum(-1))
    pieces = pieces.astype(np.float64, copy=False)
    totals: Floats = pieces[:, 0] if pieces.shape[1] == 1 else pieces.sum(-1)
    return totals


def host(values: Tensor) -> NDArray[Any]:
    """The values as an array, without a copy."""
    array: NDArray[Any] = values.numpy(force=True)
    return array


def part(values: Tensor, rows: Numbers) -> Tensor:
    """Some rows of (R, N, C): the values themselves, not a copy, if it is all of them."""
    return values if len(rows) == values.shape[0] else values[torch.from_numpy(rows)]


def columns(values: Floats, like: Tensor) -> Tensor:
    """(R,) -> (R, 1, 1), of the dtype of `like`."""
    return torch.from_numpy(values[:, None, None]).to(like)


def _read(risky_logits: Tensor, safe_logits: Tensor, memory: Tensor) -> Rows:
    safe, tilt, shared, scratch = memory[0], memory[1], memory[2], memory[3:]
    pair = risky_logits, safe_logits
    risky_top, safe_top = (host(x.amax(-1).double()) for x in pair)
    is_valid: Flags = np.isfinite(risky_top) & np.isfinite(safe_top)
    risky_peak, safe_peak = (np.where(is_valid, top, 0.0) for top in (risky_top, safe_top))
    _read_bits(safe_logits, safe_peak, safe)
    _read_bits(risky_logits, risky_peak, tilt)
    if not is_valid.all():
        invalid = torch.from_numpy(~is_valid)
        safe[invalid], tilt[invalid] = 1.0, 1.0
    safe_pieces = torch.exp2(safe, out=scratch[0]).sum(-1)
    lowest = [host(x.amin(-1).double()) for x in pair]
    if ((risky_peak - lowest[0] > BAN_GAP) | (safe_peak - lowest[1] > BAN_GAP)).any():
        masses = _ban(safe, tilt, shared, scratch)
    else:
        shared, masses = safe, (sums(safe_pieces), np.zeros_like(safe_peak))
        tilt.sub_(safe).view(tilt.shape[0], -1)[:, safe_logits.shape[1] :] = 0.0
    rounding = (safe_logits.shape[1] + WEIGHT_ROUNDINGS) * EPSILON
    shared_mass, banned_mass = masses
    with np.errstate(divide="ignore", invalid="ignore"):
        # A relative error of the quotient moves log1p by no more than that fraction of its value.
        floor = np.log1p(banned_mass / shared_mass) * (1.0 + FLOOR_MARGIN * rounding)
        floor = np.where(np.log2(shared_mass) > LEAST_BITS, floor, np.inf)
    return Rows(
        rounding=rounding,
        is_valid=is_valid,
        risky_peak=risky_peak,
        safe_peak=safe_peak,
        safe=safe,
        shared=shared,
        tilt=tilt,
        scratch=scratch,
        safe_pieces=safe_pieces,
        shared_mass=shared_mass,
        floor=floor,
    )


def _read_bits(logits: Tensor, peak: Floats, out: Tensor) -> None:
    flat = out.view(out.shape[0], -1)
    flat[:, : logits.shape[1]].copy_(logits)
    flat[:, logits.shape[1] :] = -torch.inf
    # The peak first: what is left is exact to its last digit, however large both are.
    out.sub_(columns(peak, out)).mul_(BITS_PER_NAT)


def _ban(safe: Tensor, risky: Tensor, shared: Tensor, scratch: Tensor) -> tuple[Floats, Floats]:
    """Fill `shared`, and the tilt over `risky`; returns the safe weight on the support and off it.

    scratch: (4, R, N, C), of which the first holds the safe weights. By sums and products of 0 and
    1, for torch takes ten times as long to write where a mask says.
    """
    weights, is_shared, on_support, _ = scratch.unbind(0)
    torch.ge(safe, BAN_BITS, out=is_shared).mul_(torch.ge(risky, BAN_BITS, out=on_support))
    torch.mul(weights, is_shared, out=on_support)
    # The second is summed by itself, as a difference would lose the digits of a small one.
    masses = sums(on_support), sums(weights.sub_(on_support))
    safe.clamp_(min=OFF_SUPPORT)
    risky.clamp_(min=OFF_SUPPORT).sub_(safe).mul_(is_shared)
    torch.mul(is_shared.sub_(1.0), -OFF_SUPPORT, out=shared).add_(safe)
    return masses
