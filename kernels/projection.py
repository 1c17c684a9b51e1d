"""The projected next-token distribution: p_s times a tilted and clipped likelihood ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .certificate import OFFSET_MARGIN
from .spend import BAN_BITS, BITS_PER_NAT, EPSILON, ceil_to_quantum

# B requests, V vocabulary, N tokens of each row.

Charge = Literal["mean", "worst", "drawn"]
"""The log-ratio log p*(y)/p_s(y) that a step costs: its mean over p*, that of the worst token, or
that of the token that is drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """The distribution nearest to the risky model inside the budget around the safe model.

    The true divergence from the safe model is at most `spend`, and `spend` at most the budget. Of
    charge "drawn" the same holds of the log-ratio log p*(y)/p_s(y) of the token y that is drawn.
    p*(y) = p_s(y) 2**min(slope d(y) + offset, ceiling) where both models allow y, else 0. d is the
    difference of both models' log-weights in bits, 0 bits being each row's largest logit. The KL
    projection has slope beta and no ceiling; the clipped one has slope 1.
    """

    weight: Tensor
    """(B,) float64 in [0, 1]: beta of `project_kl`, 1 / c of `project_max`."""
    spend: Tensor
    """(B,) float64 nats, a multiple of SPEND_QUANTUM; negative only for a drawn token."""
    is_safe_only: Tensor
    """(B,) bool: p* = p_s on its full support, for want of budget or of a common support."""
    is_valid: Tensor
    """(B,) bool: False for a row with NaN, +inf or no token in either model; nothing is drawn."""
    token_ids: Tensor | None
    """(B,) int64, -1 where not valid; None without uniforms."""
    accepted: Tensor | None
    """(B,) bool: the token is the safe model's draw; None without uniforms."""
    stored_log_probs: tuple[Tensor, Tensor] | None
    """log p* and log p_s of `token_ids`, (B,) float64 nats each, NaN where not valid, if drawing
    computed them: they cost nothing then."""
    risky_logits: Tensor
    """(B, V), any float dtype, warped; -inf is a banned token, and so is one that lies BAN_GAP
    below the largest of its row."""
    safe_logits: Tensor
    risky_peak: Tensor
    """(B,) float64 nats, the largest logit of the row; 0 where not valid."""
    safe_peak: Tensor
    log2_safe_mass: Tensor
    """(B,) float64, log2 of the sum of 2**bits of the safe model."""
    slope: Tensor
    """(B,) float64."""
    offset: Tensor
    """(B,) float64, bits."""
    ceiling: Tensor
    """(B,) float64, bits; inf where there is none."""
    token_bounds: tuple[Tensor, Tensor] | None = None
    """The most that any token costs and the margin of its log-ratio, (B,) float64 nats each, where
    the charge is "drawn"; None where a step costs the same whatever is drawn."""

    def log_probs(self) -> Tensor:
        """log p* of every token.

        Returns: (B, V) float32, or float64 as a model's logits; -inf off the support, NaN if not
        valid.
        """
        is_double = torch.float64 in (self.safe_logits.dtype, self.risky_logits.dtype)
        log_probs = self._log_probs(self.risky_logits, self.safe_logits)[1]
        return log_probs if is_double else log_probs.float()

    def token_log_probs(self, token_ids: Tensor) -> Tensor:
        """log p* of one token a row: (B,) int64 in, (B,) float64 out; NaN where not valid."""
        return self._log_probs(*self._logits_of(token_ids))[1][:, 0]

    def safe_token_log_probs(self, token_ids: Tensor) -> Tensor:
        """log p_s of one token a row: (B,) int64 in, (B,) float64 out; NaN where not valid."""
        return self._log_probs(*self._logits_of(token_ids))[0][:, 0]

    def token_spend(self, token_ids: Tensor) -> Tensor:
        """Nats that a draw of these tokens costs: (B,) int64 in, (B,) float64 nats out.

        That is `spend` unless the charge is "drawn"; then -inf for a token that p* cannot draw.
        """
        if self.token_bounds is None:
            return self.spend
        risky, safe = self._bits_of(*self._logits_of(token_ids))
        tilt, ratio = (x[:, 0] for x in self._tilt_and_ratio(risky, safe))
        ratio = ratio.masked_fill(safe[:, 0] == -math.inf, -math.inf)  # where p* is p_s too
        reach = (tilt.abs() + safe[:, 0].abs()).nan_to_num(0.0, posinf=0.0)
        return drawn_spend(ratio + OFFSET_MARGIN * EPSILON * reach, *self.token_bounds)

    def _logits_of(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        index = token_ids[:, None]
        return self.risky_logits.gather(1, index), self.safe_logits.gather(1, index)

    def _log_probs(self, risky_logits: Tensor, safe_logits: Tensor) -> tuple[Tensor, Tensor]:
        """log p_s and log p* of N tokens a row, nats; (B, N) both."""
        risky, safe = self._bits_of(risky_logits, safe_logits)
        _, ratio = self._tilt_and_ratio(risky, safe)
        safe = safe - self.log2_safe_mass[:, None]
        safe = safe.masked_fill(~self.is_valid[:, None], math.nan)
        return safe / BITS_PER_NAT, (safe + ratio) / BITS_PER_NAT

    def _bits_of(self, risky_logits: Tensor, safe_logits: Tensor) -> tuple[Tensor, Tensor]:
        return _bits(risky_logits, self.risky_peak), _bits(safe_logits, self.safe_peak)

    def _tilt_and_ratio(self, risky: Tensor, safe: Tensor) -> tuple[Tensor, Tensor]:
        """Tilt and log2 p* / p_s of N tokens a row with these bits, (B, N) both."""
        is_shared = (risky > -math.inf) & (safe > -math.inf)
        tilt = torch.where(is_shared, risky - safe, 0.0)
        ratio = self.slope[:, None] * tilt + self.offset[:, None]
        ratio = torch.minimum(ratio, self.ceiling[:, None]).masked_fill(~is_shared, -math.inf)
        return tilt, ratio.masked_fill(self.is_safe_only[:, None], 0.0)


def drawn_spend(log2_ratio: Tensor, most: Tensor, margin: Tensor) -> Tensor:
    """Nats that a token costs: its log-ratio, rounded up by its largest error.

    log2_ratio: (B,) bits, p* / p_s with OFFSET_MARGIN units of its tilt and its safe weight.
    most, margin: `Projection.token_bounds`.
    Returns: (B,) float64 nats, multiples of the quantum.
    """
    nats = torch.minimum(log2_ratio / BITS_PER_NAT + margin, most)
    return ceil_to_quantum(nats) + 0.0  # 0, not -0


def _bits(logits: Tensor, peak: Tensor) -> Tensor:
    # The peak first: what is left is exact to its last digit, however large both are.
    bits = (logits.double() - peak[:, None]) * BITS_PER_NAT
    return bits.masked_fill(bits < BAN_BITS, -math.inf)
