"""Power sums of the family between the models: p_beta proportional to p_s^(1-beta) p_r^beta."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .logit_pair import LogitPair
from .row_group import BITS_PER_NAT, Read, RowGroup
from .support import SupportMasses, SupportPass

# A rows asked for, B requests, P points (betas) a row, R rows and C columns of one read.

ESTIMATED_BETAS = (0.0, 0.5, 1.0)
"""What the statistics pass measures: both models and one law between them. Most roots are then
known to 1e-4 of the KL."""


@dataclass(frozen=True, slots=True)
class TiltSums:
    """Power sums of the tilt d = log p_r - log p_s + constant over the common support.

    sums[..., n] is the sum over y of w(y) d(y)**n, with d in nats and w(y) the weight
    p_s(y)**(1 - beta) p_r(y)**beta, up to a factor for each model.
    """

    beta: NDArray[np.float64]
    """(A, P)."""
    sums: NDArray[np.float64]
    """(A, P, 4)."""


class _Powers(NamedTuple):
    """Powers of the tilt from 0 to 3 in the last slots of a read."""

    tilt: Tensor
    """(R, C)."""
    square: Tensor
    cube: Tensor
    all: Tensor
    """(R, C, 4)."""

    def fill(self) -> None:
        """Once the tilt is there."""
        torch.mul(self.tilt, self.tilt, out=self.square)
        torch.mul(self.square, self.tilt, out=self.cube)


class _EstimateSlots(NamedTuple):
    weights: Tensor
    """(R, number of betas, C)."""
    logs: tuple[Tensor, ...]
    """(R, C) each, the same."""
    powers: _Powers


class _Weights(NamedTuple):
    logs: Tensor
    """(R, C)."""
    row: Tensor
    """(R, 1, C), the same."""


class _TiltSlots(NamedTuple):
    safe: _Weights
    spare: _Weights
    powers: _Powers


class _EstimatePass:
    """Reads logits for sums at ESTIMATED_BETAS, in float32: about 1e-6 relative.

    Weights below 2**-149 are lost.
    """

    def __init__(self, pair: LogitPair, num_rows: int) -> None:
        num_betas = len(ESTIMATED_BETAS)
        self._pair = pair
        self._scratch = pair.scratch(num_rows, num_betas + 4, _estimate_slots, torch.float32)

    def add(self, group: RowGroup, read: Read, total: Tensor) -> None:
        """total: (R, number of betas, 4)."""
        weights, (safe, middle, risky), powers = self._scratch.slots(group, read)
        self._pair.read_shared(group, read, safe, powers.tilt, risky)
        powers.fill()
        torch.add(safe, powers.tilt, alpha=ESTIMATED_BETAS[1], out=middle)
        torch.baddbmm(total, group.weights_(weights), powers.all, out=total)


def statistics(pair: LogitPair, rows: Tensor) -> tuple[SupportMasses, TiltSums]:
    """The first pass: the safe masses, and sums at ESTIMATED_BETAS to about 1e-6 relative.

    rows: (A,) int64. The sums are float32, and lose weights below 2**-149.
    """
    betas = np.array(ESTIMATED_BETAS)
    support, estimate = SupportPass(pair, len(rows)), _EstimatePass(pair, len(rows))
    sums = torch.zeros(len(rows), len(betas), 4, device=rows.device)
    for places, group in pair.row_groups(rows):
        total = sums[places]
        for read in group.reads:
            support.add(group, read)
            estimate.add(group, read, total)
        support.end(places, group)
        _to_nats(group, total)
    estimated = sums.cpu().numpy().astype(np.float64)
    return support.masses(), TiltSums(np.broadcast_to(betas, estimated.shape[:2]), estimated)


def tilted_sums(pair: LogitPair, rows: Tensor, beta: NDArray[np.float64]) -> TiltSums:
    """The sums at any betas, in float64.

    rows: (A,) int64. beta: (A, P) in [0, 1]. Weights below 2**-1074 are lost, which
    matters only if the sum of all weights is nearly as small; see `tilt_points`.
    """
    sums = torch.zeros(*beta.shape, 4, dtype=torch.float64, device=rows.device)
    scratch = pair.scratch(len(rows), 6, _tilt_slots)
    factors = torch.from_numpy(beta).to(rows.device)[..., None].unbind(1)
    totals = sums[:, :, None].unbind(1)
    for places, group in pair.row_groups(rows):
        points = [(x[places], total[places]) for x, total in zip(factors, totals, strict=True)]
        for read in group.reads:
            safe, spare, powers = scratch.slots(group, read)
            pair.read_shared(group, read, safe.logs, powers.tilt)
            powers.fill()
            # The last point needs the safe weights no more and takes their place.
            weights = [spare] * (len(points) - 1) + [safe]
            for (factor, total), weight in zip(points, weights, strict=True):
                group.weights_(torch.addcmul(safe.logs, factor, powers.tilt, out=weight.logs))
                torch.baddbmm(total, weight.row, powers.all, out=total)
        _to_nats(group, sums[places])
    return TiltSums(beta, sums.cpu().numpy())


def _estimate_slots(memory: Tensor, width: int) -> _EstimateSlots:
    weights = memory[:, :-4, :width]
    return _EstimateSlots(weights, weights.unbind(1), _powers(memory, width))


def _tilt_slots(memory: Tensor, width: int) -> _TiltSlots:
    safe, spare = memory[:, :1, :width], memory[:, 1:2, :width]
    safe_weights, spare_weights = (_Weights(slot[:, 0], slot) for slot in (safe, spare))
    return _TiltSlots(safe_weights, spare_weights, _powers(memory, width))


def _powers(memory: Tensor, width: int) -> _Powers:
    block = memory[:, -4:, :width]
    ones, tilt, square, cube = block.unbind(1)
    ones.fill_(1.0)
    return _Powers(tilt, square, cube, block.transpose(1, 2))


def _to_nats(group: RowGroup, sums: Tensor) -> None:
    """sums: (..., 4), of the powers from 0 to 3."""
    if not group.is_plain:
        units = [BITS_PER_NAT**-power for power in range(4)]
        sums.mul_(torch.tensor(units, dtype=sums.dtype, device=sums.device))
