"""Power sums of the family between the models: p_beta proportional to p_s^(1-beta) p_r^beta."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .logit_pair import LogitPair, piece_sums

# A rows asked for, B requests, P points (betas) a row, R rows and C columns of one read.

ESTIMATED_BETAS = (0.0, 0.5, 1.0)
"""What the statistics pass measures; most roots are then known to 1e-4 of the KL."""


@dataclass(frozen=True, slots=True)
class TiltSums:
    """Power sums of the tilt d = log p_r - log p_s + constant over the common support.

    sums[..., n] is the sum over y of w(y) d(y)**n, with d in bits and w(y) the weight
    2**((1 - beta) safe(y) + beta risky(y)).
    """

    beta: Tensor
    """(A, P) float64."""
    sums: Tensor
    """(A, P, 4) float64."""


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
    scratch = pair.scratch(len(rows), 4 if pair.has_bans else 1, torch.float64)
    for read in pair.reads(rows, scratch):
        every, *others = read.slots
        weight = pair.read_safe(read, every).exp2_()
        pieces[read.group, read.pieces] = piece_sums(weight)
        if pair.has_bans:
            pair.read_shared(read, *others)
            shared_weight = others[0].exp2_()
            shared[read.group, read.pieces] = piece_sums(shared_weight)
            banned[read.group, read.pieces] = piece_sums(weight.sub_(shared_weight))
    return SupportMasses(
        pieces, shared.sum(-1) if pair.has_bans else pieces.sum(-1), banned.sum(-1)
    )


def estimated_sums(pair: LogitPair, rows: Tensor) -> TiltSums:
    """The statistics pass: the sums at ESTIMATED_BETAS, in float32 (about 1e-6 relative).

    rows: (A,) int64. Weights below 2**-149 are lost.
    """
    beta = torch.tensor(ESTIMATED_BETAS, dtype=torch.float64, device=rows.device)
    sums = torch.zeros(len(rows), len(beta), 4, dtype=torch.float64, device=rows.device)
    scratch = pair.scratch(len(rows), len(ESTIMATED_BETAS) + 4, torch.float32)
    scratch[:, -4] = 1.0
    for read in pair.reads(rows, scratch):
        safe, *between, risky, _, tilt, square, cube = read.slots
        pair.read_shared(read, safe, risky, tilt)
        torch.mul(tilt, tilt, out=square)
        torch.mul(square, tilt, out=cube)
        for out, share in zip(between, ESTIMATED_BETAS[1:-1], strict=True):
            torch.add(safe, tilt, alpha=share, out=out)
        weights, powers = read.block[:, :-4].exp2_(), read.block[:, -4:]
        sums[read.group].add_(torch.bmm(weights, powers.transpose(1, 2)))
    return TiltSums(beta.expand(len(rows), -1), sums)


def tilted_sums(pair: LogitPair, rows: Tensor, beta: Tensor) -> TiltSums:
    """The sums at any betas, in float64.

    rows: (A,) int64. beta: (A, P) float64 in [0, 1]. Weights below 2**-1074 are lost, which
    matters only if the sum of all weights is nearly as small; see `tilt_points`.
    """
    sums = torch.zeros(*beta.shape, 4, dtype=torch.float64, device=rows.device)
    scratch = pair.scratch(len(rows), 6, torch.float64)
    scratch[:, 2] = 1.0
    for read in pair.reads(rows, scratch):
        safe, weight, _, tilt, square, cube = read.slots
        pair.read_shared(read, safe, weight, tilt)
        torch.mul(tilt, tilt, out=square)
        torch.mul(square, tilt, out=cube)
        powers = read.block[:, 2:].transpose(1, 2)
        for point, factor in enumerate(beta[read.group].split(1, dim=1)):
            torch.addcmul(safe, factor, tilt, out=weight).exp2_()
            sums[read.group, point].add_(torch.bmm(read.block[:, 1:2], powers)[:, 0])
    return TiltSums(beta, sums)
