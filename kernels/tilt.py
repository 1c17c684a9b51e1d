"""Power sums of the family between the models: p_beta proportional to p_s^(1-beta) p_r^beta."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .logit_pair import LogitPair
from .row_group import BITS_PER_NAT, PIECE_SIZE, RowGroup, piece_sums, read_logs

# A rows asked for, B requests, P points (betas) a row, R rows and C columns of one read.

ESTIMATED_BETAS = (0.0, 0.5, 1.0)
"""What the statistics pass measures; most roots are then known to 1e-4 of the KL."""


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


@dataclass(frozen=True, slots=True)
class SupportMasses:
    """Safe weight of the rows asked for, the heaviest token of each row weighing 1."""

    pieces: Tensor
    """(A, num_pieces) float64, all tokens of each piece of the vocabulary."""
    shared: Tensor
    """(A,) float64, the tokens both models allow."""
    banned: Tensor
    """(A,) float64, the others; exactly 0 where there are none."""


def support_masses(pair: LogitPair, rows: Tensor) -> SupportMasses:
    """One pass over the safe logits, and over the risky ones where tokens are banned."""
    shape = (3, len(rows), pair.num_pieces)
    pieces, shared, banned = torch.zeros(shape, dtype=torch.float64, device=rows.device)
    scratch = pair.scratch(len(rows), 3 if pair.has_bans else 1, torch.float64, PIECE_SIZE)
    for group in pair.row_groups(rows, scratch):
        for read in group.reads:
            here = (group.places, read.pieces)
            logs = read_logs(group, read.safe, group.safe_shift, group.slots[0])
            weight = group.weights_(logs)
            pieces[here] = piece_sums(weight, read.pieces)
            if pair.has_bans:
                pair.read_shared(group, read, *group.slots[1:])
                shared_weight = group.weights_(group.slots[1])
                shared[here] = piece_sums(shared_weight, read.pieces)
                banned[here] = piece_sums(weight.sub_(shared_weight), read.pieces)
    return SupportMasses(
        pieces, shared.sum(-1) if pair.has_bans else pieces.sum(-1), banned.sum(-1)
    )


def estimated_sums(pair: LogitPair, rows: Tensor) -> TiltSums:
    """The statistics pass: the sums at ESTIMATED_BETAS, in float32 (about 1e-6 relative).

    rows: (A,) int64. Weights below 2**-149 are lost.
    """
    beta = np.array(ESTIMATED_BETAS)
    sums = torch.zeros(len(rows), len(beta), 4, dtype=torch.float64, device=rows.device)
    scratch = pair.scratch(len(rows), len(ESTIMATED_BETAS) + 4, torch.float32)
    scratch[:, -4] = 1.0
    for group in pair.row_groups(rows, scratch):
        safe, *tilted, _, tilt, square, cube = group.slots
        weights, powers = group.block[:, :-4], group.block[:, -4:].transpose(1, 2)
        total = sums[group.places]
        for read in group.reads:
            pair.read_shared(group, read, safe, tilt)
            torch.mul(tilt, tilt, out=square)
            torch.mul(square, tilt, out=cube)
            for out, share in zip(tilted, ESTIMATED_BETAS[1:], strict=True):
                torch.add(safe, tilt, alpha=share, out=out)
            total.add_(torch.bmm(group.weights_(weights), powers))
        _to_nats(group, total)
    return TiltSums(np.broadcast_to(beta, sums.shape[:2]), sums.cpu().numpy())


def tilted_sums(pair: LogitPair, rows: Tensor, beta: NDArray[np.float64]) -> TiltSums:
    """The sums at any betas, in float64.

    rows: (A,) int64. beta: (A, P) in [0, 1]. Weights below 2**-1074 are lost, which
    matters only if the sum of all weights is nearly as small; see `tilt_points`.
    """
    sums = torch.zeros(*beta.shape, 4, dtype=torch.float64, device=rows.device)
    # The last point needs the safe weights no more and takes their place.
    num_spare = min(beta.shape[1] - 1, 1)
    scratch = pair.scratch(len(rows), num_spare + 5, torch.float64)
    scratch[:, num_spare + 1] = 1.0
    betas = torch.from_numpy(beta).to(rows.device)
    for group in pair.row_groups(rows, scratch):
        safe, _, tilt, square, cube = group.slots[num_spare:]
        powers = group.block[:, num_spare + 1 :].transpose(1, 2)
        factors = betas[group.places, :, None].unbind(1)
        totals = sums[group.places, :, None].unbind(1)
        spare, own = group.block[:, :1], group.block[:, num_spare : num_spare + 1]
        weights = [spare] * (len(factors) - 1) + [own]
        logs = [weight[:, 0] for weight in weights]
        for read in group.reads:
            pair.read_shared(group, read, safe, tilt)
            torch.mul(tilt, tilt, out=square)
            torch.mul(square, tilt, out=cube)
            for factor, total, weight, log in zip(factors, totals, weights, logs, strict=True):
                group.weights_(torch.addcmul(safe, factor, tilt, out=log))
                total.add_(torch.bmm(weight, powers))
        _to_nats(group, sums[group.places])
    return TiltSums(beta, sums.cpu().numpy())


def _to_nats(group: RowGroup, sums: Tensor) -> None:
    """sums: (..., 4), of the powers from 0 to 3."""
    if not group.is_plain:
        sums.mul_(
            torch.tensor([BITS_PER_NAT**-n for n in range(4)], dtype=sums.dtype, device=sums.device)
        )
