"""The projected next-token law: the safe law times a tilted and clipped likelihood ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .logit_pair import LogitPair
from .row_group import BAN_BITS, BITS_PER_NAT, Read, RowGroup

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

    def log_ratio(self, unit: float) -> LogRatio:
        """Of all B rows. unit: bits by which the tilt is counted, and the ratio."""
        ceiling = None if self.ceiling is None else self.ceiling[:, None] / unit
        return LogRatio(self.slope[:, None], self.offset[:, None] / unit, ceiling)


class LogRatio(NamedTuple):
    """Log of p* / p_s on the common support, as a function of the tilt, of R rows; (R, 1) each."""

    slope: Tensor
    offset: Tensor
    ceiling: Tensor | None

    def take(self, rows: Tensor | slice) -> LogRatio:
        ceiling = None if self.ceiling is None else self.ceiling[rows]
        return LogRatio(self.slope[rows], self.offset[rows], ceiling)

    def of_(self, tilt: Tensor) -> Tensor:
        """tilt: (R, C), written over."""
        # In two operations, for with two numbers a row `addcmul` is not vectorised.
        tilt.mul_(self.slope).add_(self.offset)
        return tilt if self.ceiling is None else torch.minimum(tilt, self.ceiling, out=tilt)

    def added_(self, safe: Tensor, tilt: Tensor) -> Tensor:
        """The ratio plus the log-weight of the safe model, both (R, C), written over the tilt."""
        if self.ceiling is not None:
            return self.of_(tilt).add_(safe)
        return torch.addcmul(safe, self.slope, tilt, out=tilt).add_(self.offset)


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
        scratch = pair.scratch(len(rows), 2, _safe_and_tilt)
        for _, group in pair.row_groups(rows):
            for read in group.reads:
                logs = _read_log_probs(self.law, group, read, *scratch.slots(group, read))
                nats = logs[:, : read.num_columns].div_(BITS_PER_NAT / group.unit)
                log_probs[group.rows, read.columns] = nats.to(dtype)
        return log_probs

    def token_log_probs(self, token_ids: Tensor) -> Tensor:
        """log p* of one token a row: (B,) int64 in, (B,) float64 out; NaN where not valid."""
        _check_token_ids(token_ids, self.law.pair)
        return self._nats([token.log2_prob for token in token_bits(self.law, token_ids)])

    def safe_token_log_probs(self, token_ids: Tensor) -> Tensor:
        """log p_s of one token a row: (B,) int64 in, (B,) float64 out; NaN where not valid."""
        _check_token_ids(token_ids, self.law.pair)
        return self._nats([token.safe for token in token_bits(self.law, token_ids)])

    def _nats(self, bits: list[float]) -> Tensor:
        values = torch.tensor(bits, dtype=torch.float64, device=self.is_valid.device)
        return torch.where(self.is_valid, values / BITS_PER_NAT, math.nan)


def _safe_and_tilt(memory: Tensor, width: int) -> tuple[Tensor, ...]:
    return memory[..., :width].unbind(1)


def _read_log_probs(
    law: RatioLaw, group: RowGroup, read: Read, safe: Tensor, tilt: Tensor
) -> Tensor:
    """(R, C) float64, log p* of a block of tokens in the unit of the group, in one of two slots."""
    law.pair.read_shared(group, read, safe, tilt)
    logs = law.log_ratio(group.unit).take(group.rows).added_(safe, tilt)
    is_safe_only = law.is_safe_only[group.rows]
    if bool(is_safe_only.any()):
        every = group.read_safe(read, safe)
        every = every.masked_fill_(every < BAN_BITS, -math.inf)
        torch.where(is_safe_only[:, None], every, logs, out=logs)
    return logs.sub_(law.log2_safe_mass[group.rows, None] / group.unit)


class TokenBits(NamedTuple):
    """log2 p_s of one token, and of p* / p_s; NaN or an infinity in rows that are not valid."""

    safe: float
    ratio: float

    @property
    def log2_prob(self) -> float:
        return self.safe + self.ratio if self.safe > -math.inf else -math.inf


def token_bits(law: RatioLaw, token_ids: Tensor) -> list[TokenBits]:
    """Of one token a row, (B,) int64, from two logits a row, on the host."""
    pair, index = law.pair, token_ids[:, None]
    columns = (
        pair.safe.gather(1, index)[:, 0],
        pair.risky.gather(1, index)[:, 0],
        pair.safe_peak[:, 0],
        pair.risky_peak[:, 0],
        law.log2_safe_mass,
        law.slope,
        law.offset,
        torch.full_like(law.offset, math.inf) if law.ceiling is None else law.ceiling,
        law.is_safe_only,
    )
    return [_token_bits(*row) for row in zip(*(x.tolist() for x in columns), strict=True)]


def _token_bits(
    safe: float,
    risky: float,
    safe_peak: float,
    risky_peak: float,
    log2_safe_mass: float,
    slope: float,
    offset: float,
    ceiling: float,
    is_safe_only: bool,
) -> TokenBits:
    # The same arithmetic as `RowGroup`: peaks first.
    safe_bits, risky_bits = (safe - safe_peak) * BITS_PER_NAT, (risky - risky_peak) * BITS_PER_NAT
    safe_bits = safe_bits if safe_bits >= BAN_BITS else -math.inf
    if is_safe_only:
        return TokenBits(safe_bits - log2_safe_mass, 0.0)
    if safe_bits == -math.inf or risky_bits < BAN_BITS:
        return TokenBits(safe_bits - log2_safe_mass, -math.inf)
    ratio = min(slope * (risky_bits - safe_bits) + offset, ceiling)
    return TokenBits(safe_bits - log2_safe_mass, ratio)


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
