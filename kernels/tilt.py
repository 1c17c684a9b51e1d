"""Power sums of the family between the models: p_beta proportional to p_s^(1-beta) p_r^beta."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .logit_pair import PIECE_SIZE, LogitPair, Read, padded, piece_sums

# A rows asked for, B requests, P points (betas) a row, R rows and C columns of one read.

NUM_STEPS = 8
"""The statistics pass measures beta = 0, 1/8, ..., 1 from three exponentials a token."""

STEP_LIMIT = 60.0
"""Bits; exp2 of one step is held within it, so that four of them cannot overflow a float32."""


PRODUCT_SIZE = 512
"""Columns of one matrix product; a divisor of PIECE_SIZE. Its float32 sums run token after token:
KL at beta = 1 errs by 5e-6 with 4,096 columns, 4e-7 with 512, at the same speed."""

NUM_POWERS = 4
FIRST_WEIGHT = 6
"""Scratch slots: safe, risky, the four powers of the tilt, and from here the weights."""


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
    shape = (len(rows), pair.num_pieces)
    pieces = torch.zeros(shape, dtype=torch.float64, device=rows.device)
    shared, banned = torch.zeros_like(pieces), torch.zeros_like(pieces)
    scratch = pair.scratch(len(rows), 4, torch.float64)
    for read in pair.reads(rows):
        every, *others = read.room(scratch)
        weight = pair.read_safe(read, every).exp2_()
        mass = piece_sums(weight)
        pieces[read.group, read.pieces] = mass
        shared[read.group, read.pieces] = mass
        if pair.has_bans:
            pair.read_shared(read, *others)
            shared_weight = others[0].exp2_()
            shared[read.group, read.pieces] = piece_sums(shared_weight)
            banned[read.group, read.pieces] = piece_sums(weight.sub_(shared_weight))
    return SupportMasses(pieces, shared.sum(-1), banned.sum(-1))


def tilted_sums(pair: LogitPair, rows: Tensor, beta: Tensor) -> TiltSums:
    """The sums at any betas, in float64.

    rows: (A,) int64. beta: (A, P) float64 in [0, 1]. Weights below 2**-1074 are lost, which
    matters only if the sum of all weights is nearly as small; see `tilt_points`.
    """
    sums = torch.zeros(*beta.shape, NUM_POWERS, dtype=torch.float64, device=rows.device)
    scratch = _scratch(pair, rows, beta.shape[1], torch.float64)
    for read in pair.reads(rows):
        slots = read.room(scratch)
        safe, tilt = _read_powers(pair, read, slots)
        for weight, point in zip(slots[FIRST_WEIGHT:], beta[read.group].unbind(1), strict=True):
            torch.addcmul(safe, point[:, None], tilt, out=weight).exp2_()
        sums[read.group] += _power_sums(scratch, read)
    return TiltSums(beta, sums)


def estimated_sums(pair: LogitPair, rows: Tensor) -> TiltSums:
    """The statistics pass: the sums at beta = j / 8 for j = 0, ..., 8, in float32 (1e-6 relative).

    rows: (A,) int64. Points 1 to 4 are multiplied up from beta = 0 and points 5 to 7 down from
    beta = 1, so a token whose weight at the nearer end underflows (below 2**-149) is lost only
    where its true weight is below 2**-74.
    """
    shape = (len(rows), NUM_STEPS + 1, NUM_POWERS)
    sums = torch.zeros(shape, dtype=torch.float64, device=rows.device)
    scratch = _scratch(pair, rows, NUM_STEPS + 1, torch.float32)
    for read in pair.reads(rows):
        slots = read.room(scratch)
        _read_powers(pair, read, slots)
        _chain_weights(slots)
        sums[read.group] += _power_sums(scratch, read)
    beta = torch.arange(NUM_STEPS + 1, dtype=torch.float64, device=rows.device) / NUM_STEPS
    return TiltSums(beta.expand(len(rows), -1), sums)


def _scratch(pair: LogitPair, rows: Tensor, num_points: int, dtype: torch.dtype) -> Tensor:
    scratch = pair.scratch(len(rows), FIRST_WEIGHT + num_points, dtype)
    scratch[:, FIRST_WEIGHT - NUM_POWERS] = 1.0
    return scratch


def _read_powers(pair: LogitPair, read: Read, slots: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Fill the slots before the weights: safe, risky, and the powers 1 to 3 of the tilt."""
    safe, risky, _, tilt, square, cube = slots[:FIRST_WEIGHT]
    pair.read_shared(read, safe, risky, tilt)
    torch.mul(tilt, tilt, out=square)
    torch.mul(square, tilt, out=cube)
    return safe, tilt


def _chain_weights(slots: Sequence[Tensor]) -> None:
    """Fill the nine weights, at beta = j / 8."""
    safe, risky, _, tilt = slots[:4]
    weights = slots[FIRST_WEIGHT:]
    torch.exp2(safe, out=weights[0])
    torch.exp2(risky, out=weights[NUM_STEPS])
    step = torch.mul(tilt, 1.0 / NUM_STEPS, out=safe).clamp_(-STEP_LIMIT, STEP_LIMIT).exp2_()
    for point in range(1, NUM_STEPS // 2 + 1):
        torch.mul(weights[point - 1], step, out=weights[point])
    step.reciprocal_()
    for point in range(NUM_STEPS - 1, NUM_STEPS // 2, -1):
        torch.mul(weights[point + 1], step, out=weights[point])


def _power_sums(scratch: Tensor, read: Read) -> Tensor:
    """(R, P, 4) float64: sums of weights * tilt**n, as matrix products over pieces of the block."""
    filled = scratch[: read.num_rows, :, : padded(read.num_columns)]
    # Reads of several columns of pieces have one row, so that nothing is copied here.
    num_rows, num_slots, num_columns = filled.shape
    width = num_columns if num_columns <= PIECE_SIZE else PRODUCT_SIZE
    pieces = filled.view(num_rows, num_slots, -1, width).transpose(1, 2).flatten(0, 1)
    powers = pieces[:, FIRST_WEIGHT - NUM_POWERS : FIRST_WEIGHT]
    products = torch.bmm(pieces[:, FIRST_WEIGHT:], powers.transpose(1, 2))
    return products.view(num_rows, -1, *products.shape[1:]).sum(1, dtype=torch.float64)
