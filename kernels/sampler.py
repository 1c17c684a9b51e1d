"""The coupled sampler coupled/1: the safe model's draw where it may stand, else the residual."""

from collections.abc import Callable

import torch
from torch import Tensor

from .law import RatioLaw, token_log2_probs
from .row_group import PIECE_SIZE, Read, RowGroup, piece_sums, read_logs

# A rows drawn for, B requests, V vocabulary, R rows and C columns of one read.

ReadWeights = Callable[[RatioLaw, RowGroup, Read], Tensor]
"""law, read into two slots -> (R, C) float64 weights, at least 0, in one of the slots."""


def coupled_sample(
    safe_log_probs: Tensor, log_probs: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw from p* so that the token is the safe model's own draw as often as possible.

    safe_log_probs, log_probs: (B, V) float, nats, each row normalised; p* may have mass where p_s
    has none. uniform: (B, 3) float64 in [0, 1).
    Returns: token_ids (B,) int64, never one with p* = 0, and accepted (B,) bool; accepted with
    probability 1 - TV(p*, p_s), the most any coupling reaches.
    Raises: ValueError if the shapes differ.
    Source: the acceptance rule of Leviathan et al. 2023, "Fast inference from transformers via
    speculative decoding", algorithm 1, with the uniforms fixed beforehand.
    """
    if safe_log_probs.ndim != 2 or safe_log_probs.shape != log_probs.shape:
        raise ValueError(
            f"safe_log_probs and log_probs must both be (B, V), "
            f"got {tuple(safe_log_probs.shape)} and {tuple(log_probs.shape)}"
        )
    check_uniform(uniform, len(log_probs))
    safe_log_probs, log_probs = safe_log_probs.double(), log_probs.double()
    draft = inverse_cdf(safe_log_probs.exp(), uniform[:, 0])
    safe_prob = safe_log_probs.gather(1, draft[:, None])[:, 0].exp()
    prob = log_probs.gather(1, draft[:, None])[:, 0].exp()
    weights = _residual(safe_log_probs, log_probs)
    # Rounding can leave no residual though the draft failed: then p* is p_s to rounding.
    is_empty = weights.sum(-1) <= 0.0
    accepted = (uniform[:, 1] * safe_prob < prob) | (is_empty & (prob > 0.0))
    weights = torch.where(is_empty[:, None], log_probs.exp(), weights)
    return torch.where(accepted, draft, inverse_cdf(weights, uniform[:, 2])), accepted


def sample_law(law: RatioLaw, is_valid: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """`coupled_sample` for a law kept as two rows of logits, without its log-probabilities.

    is_valid: (B,) bool. uniform: (B, 3) float64 in [0, 1).
    Returns: token_ids (B,) int64, -1 where not valid, and accepted (B,) bool.
    """
    token_ids = torch.full_like(is_valid, -1, dtype=torch.int64)
    rows = is_valid.nonzero()[:, 0]
    token_ids[rows] = _draw(law, rows, law.safe_pieces[rows], uniform[:, 0], _safe_weights)
    log2_prob, log2_safe_prob = token_log2_probs(law, token_ids.clamp_min(0))
    ratio = (log2_prob - log2_safe_prob).exp2()
    accepted = is_valid & (uniform[:, 1] < ratio)
    rejected = (is_valid & ~accepted).nonzero()[:, 0]
    masses = _masses(law, rejected, _residual_weights)
    is_empty = masses.sum(-1) <= 0.0
    if bool(is_empty.any()):
        # Rounding can leave no residual though the draft failed: then p* is p_s to rounding.
        accepted[rejected[is_empty]] = ratio[rejected[is_empty]] > 0.0
        stranded = rejected[is_empty & ~accepted[rejected]]
        shared = _masses(law, stranded, _shared_weights)
        token_ids[stranded] = _draw(law, stranded, shared, uniform[:, 2], _shared_weights)
        rejected, masses = rejected[~is_empty], masses[~is_empty]
    token_ids[rejected] = _draw(law, rejected, masses, uniform[:, 2], _residual_weights)
    return token_ids, accepted


def inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first index at which the running sum of the weights exceeds uniform times their total.

    weights: (A, N) float64, at least 0, each row with a positive sum. uniform: (A,) in [0, 1).
    Returns: (A,) int64; its weight is positive.
    """
    running_sum = weights.cumsum(-1)
    return _first_above(running_sum, uniform * running_sum[:, -1])


def check_uniform(uniform: Tensor, num_rows: int) -> None:
    """Raise ValueError unless `uniform` is (num_rows, 3) float64 in [0, 1)."""
    if uniform.shape != (num_rows, 3) or uniform.dtype != torch.float64:
        raise ValueError(
            f"uniform must be ({num_rows}, 3) float64, got {tuple(uniform.shape)} {uniform.dtype}"
        )
    if not bool(((uniform >= 0.0) & (uniform < 1.0)).all()):
        raise ValueError(f"uniform must be in [0, 1), got {uniform.tolist()}")


def _first_above(running_sum: Tensor, target: Tensor) -> Tensor:
    # Below the last sum: an index whose weight is positive exists, whatever the sums' rounding.
    last = torch.nextafter(running_sum[:, -1], torch.zeros_like(target))
    return torch.searchsorted(running_sum, torch.minimum(target, last)[:, None], right=True)[:, 0]


def _residual(safe_log_probs: Tensor, log_probs: Tensor) -> Tensor:
    """(p* - p_s)_+ as p* (1 - exp(-log p*/p_s)), which keeps its digits where the two nearly agree
    and stays finite where p_s underflows or is 0."""
    log_ratio = torch.where(log_probs > -torch.inf, log_probs - safe_log_probs, 0.0)
    return log_ratio.neg_().expm1_().neg_().clamp_min_(0.0).mul_(log_probs.exp())


def _safe_weights(law: RatioLaw, group: RowGroup, read: Read) -> Tensor:
    return group.weights_(read_logs(group, read.safe, group.safe_shift, group.slots[0]))


def _shared_weights(law: RatioLaw, group: RowGroup, read: Read) -> Tensor:
    safe, tilt = group.slots
    law.pair.read_shared(group, read, safe, tilt)
    return group.weights_(safe)


def _residual_weights(law: RatioLaw, group: RowGroup, read: Read) -> Tensor:
    """(p* - p_s)_+ up to a factor; its rounding error is that of p_s itself."""
    safe, tilt = group.slots
    law.pair.read_shared(group, read, safe, tilt)
    weight = law.log_ratio(group.rows, tilt, group.unit).add_(safe)
    group.weights_(group.block)
    weight.sub_(safe).clamp_min_(0.0)
    weight[:, read.safe.shape[1] :] = 0.0
    return weight


def _masses(law: RatioLaw, rows: Tensor, weights: ReadWeights) -> Tensor:
    """(A, num_pieces) float64, the weight in each piece of the vocabulary."""
    masses = torch.zeros(len(rows), law.pair.num_pieces, dtype=torch.float64, device=rows.device)
    scratch = law.pair.scratch(len(rows), 2, torch.float64, PIECE_SIZE)
    for group in law.pair.row_groups(rows, scratch):
        for read in group.reads:
            sums = piece_sums(weights(law, group, read), read.pieces)
            masses[group.places, read.pieces] = sums
    return masses


def _draw(
    law: RatioLaw, rows: Tensor, masses: Tensor, uniform: Tensor, weights: ReadWeights
) -> Tensor:
    """Inverse CDF in two levels: the piece by its mass, then the token inside it.

    rows: (A,). masses: (A, num_pieces) float64. uniform: (B,) float64. Returns: (A,) int64.
    """
    if not len(rows):
        return rows
    running_sum = masses.cumsum(-1)
    target = uniform[rows] * running_sum[:, -1]
    chosen = _first_above(running_sum, target)
    before = torch.nn.functional.pad(running_sum, (1, 0)).gather(1, chosen[:, None])[:, 0]
    scratch = law.pair.piece_scratch(len(rows), 2)
    inside = masses.new_empty(len(rows), scratch.shape[-1])
    for group in law.pair.row_groups(rows, scratch, pieces=chosen):
        in_piece = weights(law, group, group.reads[0])
        torch.cumsum(in_piece, -1, out=inside[group.places])
    return PIECE_SIZE * chosen + _first_above(inside, target - before)
