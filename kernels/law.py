"""The projected next-token law: the safe law times a tilted and clipped likelihood ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .logit_pair import LogitPair
from .row_group import BITS_PER_NAT, Read, RowGroup, read_logs

# A rows, B requests, V vocabulary, R rows and C columns of one read.


@dataclass(frozen=True, slots=True)
class RatioLaw:
    """p*(y) = p_s(y) 2**min(slope d(y) + offset, ceiling) where both models allow y, else 0.

    d is the tilt of `LogitPair.read_shared`. Rows with `is_safe_only` have p* = p_s everywhere.
    The KL projection has slope beta and no ceiling; the clipped law of order infinity has slope 1.
    """

    pair: LogitPair
    safe_pieces: Tensor
    """(B, num_pieces) float64, the safe model's weight in each piece of the vocabulary; or (B, 1),
    the weight of the whole, which is enough for all but `sampler.sample_law`."""
    slope: Tensor
    """(B,) float64."""
    offset: Tensor
    """(B,) float64, bits."""
    ceiling: Tensor | None
    """(B,) float64, bits; None if no row has one."""
    is_safe_only: Tensor
    """(B,) bool."""

    @property
    def log2_safe_mass(self) -> Tensor:
        return self.safe_pieces.sum(-1).log2()

    def log_ratio(self, rows: Tensor | slice, tilt: Tensor, unit: float) -> Tensor:
        """Log of p* / p_s on the common support: R rows, tilt (R, C); written over the tilt.

        unit: bits by which the tilt is counted, and the ratio.
        """
        torch.addcmul(self.offset[rows, None] / unit, self.slope[rows, None], tilt, out=tilt)
        if self.ceiling is not None:
            torch.minimum(tilt, self.ceiling[rows, None] / unit, out=tilt)
        return tilt


def safe_only_law(pair: LogitPair) -> RatioLaw:
    """The law p* = p_s in every row, with its safe masses still to be filled in."""
    num_rows, device = len(pair.is_valid), pair.safe.device
    zeros = torch.zeros(num_rows, dtype=torch.float64, device=device)
    return RatioLaw(
        pair=pair,
        safe_pieces=torch.zeros(num_rows, pair.num_pieces, dtype=torch.float64, device=device),
        slope=zeros,
        offset=zeros.clone(),
        ceiling=None,
        is_safe_only=torch.ones_like(pair.is_valid),
    )


@dataclass(frozen=True, slots=True)
class Projection:
    """The distribution nearest to the risky model inside the budget around the safe model.

    The true divergence from the safe model is at most `spend`, and `spend` at most the budget.
    """

    weight: Tensor
    """(B,) float64 in [0, 1]: beta of `project_kl`, 1 / c of `project_max`."""
    spend: Tensor
    """(B,) float64 nats, a multiple of SPEND_QUANTUM."""
    is_safe_only: Tensor
    """(B,) bool: p* = p_s on its full support, for want of budget or of a common support."""
    is_valid: Tensor
    """(B,) bool: False for a row with NaN, +inf or no token in either model; nothing is drawn."""
    token_ids: Tensor | None
    """(B,) int64, -1 where not valid; None if no uniforms were given."""
    accepted: Tensor | None
    """(B,) bool: the token is the safe model's own draw; None if no uniforms were given."""
    law: RatioLaw

    def log_probs(self) -> Tensor:
        """log p* of every token.

        Returns: (B, V) float32, float64 if a model's logits are; -inf outside the support, NaN in
        rows that are not valid.
        """
        pair = self.law.pair
        is_double = torch.float64 in (pair.safe.dtype, pair.risky.dtype)
        dtype = torch.float64 if is_double else torch.float32
        log_probs = torch.full(pair.safe.shape, math.nan, dtype=dtype, device=pair.safe.device)
        rows = self.is_valid.nonzero()[:, 0]
        for group in pair.row_groups(rows, pair.scratch(len(rows), 2, torch.float64)):
            for read in group.reads:
                logs = read_log_probs(self.law, group, read)
                nats = logs[:, : read.safe.shape[1]].div_(BITS_PER_NAT / group.unit)
                log_probs[group.rows, read.columns] = nats.to(dtype)
        return log_probs

    def token_log_probs(self, token_ids: Tensor) -> Tensor:
        """log p* of one token a row: (B,) int64 in, (B,) float64 out; NaN where not valid."""
        _check_token_ids(token_ids, self.law.pair)
        bits, _ = token_log2_probs(self.law, token_ids)
        return torch.where(self.is_valid, bits / BITS_PER_NAT, math.nan)

    def safe_token_log_probs(self, token_ids: Tensor) -> Tensor:
        """log p_s of one token a row: (B,) int64 in, (B,) float64 out; NaN where not valid."""
        _check_token_ids(token_ids, self.law.pair)
        _, safe_bits = token_log2_probs(self.law, token_ids)
        return torch.where(self.is_valid, safe_bits / BITS_PER_NAT, math.nan)


def read_log_probs(law: RatioLaw, group: RowGroup, read: Read) -> Tensor:
    """(R, C) float64, log p* of a block of tokens in the unit of the group, in one of two slots."""
    safe, tilt = group.slots
    law.pair.read_shared(group, read, safe, tilt)
    logs = safe.add_(law.log_ratio(group.rows, tilt, group.unit))
    is_safe_only = law.is_safe_only[group.rows]
    if bool(is_safe_only.any()):
        every = read_logs(group, read.safe, group.safe_shift, tilt)
        torch.where(is_safe_only[:, None], every, logs, out=logs)
    return logs.sub_(law.log2_safe_mass[group.rows, None] / group.unit)


def token_log2_probs(law: RatioLaw, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """log2 p* and log2 p_s of one token a row, (B,) float64 each, from two logits a row."""
    index = token_ids[:, None]
    safe = law.pair.safe.gather(1, index).double() * BITS_PER_NAT + law.pair.safe_shift
    risky = law.pair.risky.gather(1, index).double() * BITS_PER_NAT + law.pair.risky_shift
    is_shared = (safe > -math.inf) & (risky > -math.inf)
    tilt = torch.where(is_shared, risky - safe, 0.0)
    safe = (safe - law.log2_safe_mass[:, None])[:, 0]
    ratio = torch.where(is_shared, law.log_ratio(slice(None), tilt, 1.0), -math.inf)[:, 0]
    ratio = torch.where(law.is_safe_only, 0.0, ratio)
    return torch.where(safe > -math.inf, safe + ratio, -math.inf), safe


def _check_token_ids(token_ids: Tensor, pair: LogitPair) -> None:
    if token_ids.shape != pair.safe.shape[:1] or token_ids.dtype != torch.int64:
        raise ValueError(
            f"token_ids must be ({len(pair.safe)},) int64, "
            f"got {tuple(token_ids.shape)} {token_ids.dtype}"
        )
    if len(token_ids) and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < pair.vocab_size:
        raise ValueError(
            f"token_ids must be in [0, {pair.vocab_size}), "
            f"got {int(token_ids.min())} to {int(token_ids.max())}"
        )
