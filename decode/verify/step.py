"""p_s and p* of a recorded step, in float64, and how far rounding may move them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ...kernels import reference
from ...kernels.certificate import KL_MARGIN, MASS_RESERVE, RESERVE_NATS, WEIGHT_ROUNDINGS
from ...kernels.spend import EPSILON, MAX_DIVERGENCE_CAP
from ..event_bound import divergence_of
from ..ledger import LedgerStep
from ..rules.rule import NextToken
from ..settings import Charge
from .rounding import ARITHMETIC, NUM_DEVIATIONS, moved

# V symbols. Distributions are (V,) float64 log-probabilities. `x_by` is by how many nats rounding
# may move x.

SOLVER_FRACTION = 1e-5
SOLVER_NATS = 1e-7
"""A solver may miss a budget that binds by max(fraction * budget, nats): docs/certificate.md."""

SOLVER_MARGINS = 8.0
"""Margins for rounding by which a solver may stop short: it aims 2 below the budget, stops
within 4, and charges one."""

Kind = Literal["tilted", "clipped", "replayed", "alone"]
"""The form of p*: a tilted distribution, a clipped one, whatever the rule gives, or that without a
safe model."""


@dataclass(kw_only=True, slots=True)
class Step:
    """A recorded step, what both models say there, and what follows; figures in nats."""

    recorded: LedgerStep
    kind: Kind
    charge: Charge
    """The log-ratio of p* to p_s that the rule charges."""
    safe_logits: Tensor
    """(V,) warped, on the CPU."""
    risky_logits: Tensor
    """(V,), the same; ignored where nothing may be spent."""
    reads_risky: bool
    """Whether the rule does."""
    safe_by: float
    """Tolerance of a warped logit of the safe model."""
    risky_by: float
    drawn: NextToken
    """The outcome of the rule for these logits at the recorded budget."""
    uniform: tuple[float, float, float] | None
    """None for greedy decoding."""

    # 1. The distributions that the record stands for, made with the step.
    safe: Tensor = field(init=False)
    star: Tensor = field(init=False)
    nats: float = field(init=False)
    """The log-ratio of p* to p_s that the step is charged: the mean, the worst or the token's, at
    the recorded weight or spend."""
    star_by: Tensor = field(init=False)
    """(V,), of the logits of p*."""
    ratio_by: Tensor = field(init=False)
    """(V,), of log p* / p_s."""
    token_by: float = field(init=False)
    """Tolerance of log p* of the recorded token."""
    nats_by: float = field(init=False)
    spend_by: float = field(init=False)
    """Tolerance of the rule's spend at the recorded budget."""
    slack: float = field(init=False, default=0.0)
    """Nats by which the spend may be above that: what a solver may miss a budget by, and
    its margin for its sums; or what noise adds to the cost of a drawn token on average, as it made
    that token a little likelier."""
    log_scales: tuple[float, float] | None = field(init=False, default=None)
    """Least and largest log c of a clipped distribution that rounding explains."""

    # 2. and 3. What `check_step` finds.
    failures: list[str] = field(init=False, default_factory=list)
    """A phrase each."""
    spread: float = field(init=False, default=0.0)
    """Standard deviation of log p_r / p_s under p*."""
    steepness: tuple[float, float] = field(init=False, default=(0.0, 0.0))
    """The error of the odds that log p_s gives the token, and how far they move with the logarithm
    of the temperature, both in standard deviations of rounding."""
    rounding: float = field(init=False, default=0.0)
    """Tolerances by which the distributions must move for the uniforms to give the token; 0 where
    they give it exactly."""
    chance: float = field(init=False, default=0.0)
    """The chance that rounding gives another token than the uniforms do exactly."""
    gain: float = field(init=False, default=0.0)
    """Nats of log p_r / p_s that the token has more than the one that they give exactly."""

    def __post_init__(self) -> None:
        recorded, log_probs = self.recorded, reference.log_softmax
        if self.kind in ("replayed", "alone"):
            _replay(self)
        else:
            self.safe = log_probs(self.safe_logits)
            if recorded.spend == 0.0 and recorded.weight == 0.0:
                by = self.token_moved(log_probs, [self.safe_logits], [self.safe_by])
                _follow(self, self.safe, 0.0, token_by=by, star_by=self.safe_by)
            else:
                (_clip if self.kind == "clipped" else _tilt)(self)
        if math.isfinite(recorded.spend):
            self.slack += max(SOLVER_FRACTION * recorded.spend, SOLVER_NATS)

    @property
    def rows(self) -> tuple[Tensor, Tensor]:
        """Both models' logits, the risky one's first as in `reference`."""
        return self.risky_logits, self.safe_logits

    @property
    def rows_by(self) -> tuple[float, float]:
        return self.risky_by, self.safe_by

    def token_moved(
        self, log_probs: Callable[..., Tensor], rows: Sequence[Tensor], by: Sequence[float]
    ) -> float:
        """Nats by which rounding may move the log-probability of the recorded token."""
        return moved(lambda *moving: log_probs(*moving)[self.recorded.token_id], rows, by)

    def spent(self, star: Tensor, safe: Tensor, **options: float) -> Tensor:
        """The divergence of p* from p_s that bounds the charge, as `reference` has it."""
        divergence = reference.DIVERGENCES[divergence_of(self.charge)]
        return divergence(star[None], safe[None], **options)[0]


def _follow(
    step: Step,
    star: Tensor,
    nats: float,
    *,
    token_by: float,
    nats_by: float = 0.0,
    star_by: float | Tensor,
    ratio_by: float | Tensor = 0.0,
) -> None:
    """Set p*, its divergence, and by what rounding may move them, beyond sums and the grid."""
    step.star, step.nats = star, nats
    step.star_by, step.ratio_by = (torch.zeros_like(star) + by for by in (star_by, ratio_by))
    step.token_by = ARITHMETIC + token_by
    step.nats_by = step.spend_by = ARITHMETIC + nats_by


def unbanned(logits: Tensor) -> Tensor:
    return reference.log_softmax(logits, ban_gap=math.inf)


def raised(star: Tensor, ratio_by: float) -> float:
    """Nats by which noise raises a divergence of two that are alike, where its slope is 0.

    It is half the variance of log-ratios; of errors of one size none has more than two symbols with
    half of the mass each.
    """
    spread = 1.0 - star.exp().square().sum().item()
    return 0.25 * ratio_by * ratio_by * spread


def _replay(step: Step) -> None:
    """The distribution of rules that project nothing: they ban nothing of what is finite either."""
    # p* is what the rule's figures are when they sum to one, as a draw would have it.
    star = unbanned(step.drawn.log_probs()[0].cpu())
    if step.kind == "alone":  # the draw is p*'s alone, nothing is known of the safe model
        step.safe, by = star, step.token_moved(unbanned, [star], [step.risky_by])
        _follow(step, star, math.inf, token_by=by, star_by=step.risky_by)
        return

    def spent(star: Tensor, safe: Tensor) -> Tensor:
        return step.spent(unbanned(star), safe, ban_gap=math.inf)

    either = step.safe_by + (step.risky_by if step.reads_risky else 0.0)
    step.safe, rows = unbanned(step.safe_logits), (star, step.safe_logits)
    _follow(
        step,
        star,
        spent(*rows).item(),
        token_by=step.token_moved(unbanned, [star], [either]),
        nats_by=moved(spent, rows, [either, step.safe_by]) + raised(star, either),
        star_by=either,
        ratio_by=either,
    )


def _tilt(step: Step) -> None:
    weight, rows, by = step.recorded.weight, step.rows, step.rows_by

    def tilted(risky: Tensor, safe: Tensor) -> Tensor:
        weights = torch.tensor([weight], dtype=torch.float64)
        return reference.tilted_log_probs(risky[None], safe[None], weights)[0]

    def spent(risky: Tensor, safe: Tensor) -> Tensor:
        return step.spent(tilted(risky, safe), safe)

    star = tilted(*rows)
    # p* / p_s moves by the weight, and where a small weight sets the distributions apart by what
    # they are apart: the normalization is a mean under one less that under the other.
    apart = 0.5 * (star.exp() - step.safe.exp()).abs().sum().item()
    ratio_by = math.hypot(*by) * min(1.0, weight + apart)
    _follow(
        step,
        star,
        spent(*rows).item(),
        token_by=step.token_moved(tilted, rows, by),
        nats_by=moved(spent, rows, by) + raised(star, ratio_by),
        star_by=math.hypot((1.0 - weight) * step.safe_by, weight * step.risky_by),
        ratio_by=ratio_by,
    )
    # A solver's margin, docs/certificate.md, "The certificate". It grows with the square of the
    # logits, so with 1 / temperature**2.
    is_shared = star > -math.inf
    tilt = torch.where(is_shared, reference.log_softmax(step.risky_logits) - step.safe, 0.0)
    shared = step.safe.masked_fill(~is_shared, -math.inf)
    spread = (star.exp() * tilt.square()).sum().sqrt().item()
    drift = (torch.logsumexp(shared + weight * tilt, -1) - torch.logsumexp(shared, -1)).abs().item()
    error = _rounding(star) + EPSILON * (spread + drift)
    step.slack = SOLVER_MARGINS * (KL_MARGIN * error * (1.0 + drift + weight * spread))


def _rounding(star: Tensor) -> float:
    return EPSILON * (len(star) + WEIGHT_ROUNDINGS)


def _clip(step: Step) -> None:
    """log c jumps where little is free, so its range is that of caps moved by rounding."""
    either, is_drawn = step.safe_by + step.risky_by, step.charge == "drawn"
    # 1. The cap: what the worst token was charged; or what the drawn one might have been, the
    #    budget less what a solver keeps back.
    nats = step.recorded.spend
    if is_drawn:
        kept_back = MASS_RESERVE * _rounding(step.safe)
        nats = min(step.recorded.budget, MAX_DIVERGENCE_CAP) - RESERVE_NATS - kept_back
    risky, safe_logits = (row.expand(3, -1) for row in step.rows)
    caps = torch.tensor([nats, nats + either, nats - either], dtype=torch.float64)
    scales = reference.project_max(risky, safe_logits, caps).nan_to_num(math.inf)
    log_scale, lowest, highest = scales.tolist()
    # 2. p*. Where even the cap has no mass of 1, all is clipped: p_s, normalized on the common
    #    support.
    star = reference.clipped_log_probs(risky[:1], safe_logits[:1], caps[:1], scales[:1])[0]
    star = star - star.logsumexp(-1)
    # 3. How far rounding moves it. What is free moves with c, but only up to its cap; the cap moves
    #    with p_s.
    reach = math.inf if log_scale == math.inf else max(highest - log_scale, log_scale - lowest)
    room = torch.where(star > -math.inf, step.safe + nats - star, 0.0).clamp(0.0, either + reach)
    _follow(
        step,
        star,
        reference.max_divergence(star[None], step.safe_logits[None]).item(),
        token_by=either + room[step.recorded.token_id].item(),
        nats_by=either,
        star_by=either + room,
        ratio_by=either + room,
    )
    step.log_scales = lowest - either, highest + either
    # 4. What is charged. Where p* clips, the recorded spend itself is the largest ratio.
    if is_drawn:
        _charge_the_token(step, nats, 0.0 if log_scale == math.inf else highest - log_scale)
    elif log_scale < math.inf and step.nats >= nats:
        step.nats_by = ARITHMETIC


def _charge_the_token(step: Step, nats: float, most_scaled: float) -> None:
    """Charge the log-ratio of the recorded token, where p* is clipped at so many nats.

    most_scaled: nats by which rounding may raise log c.
    """
    token_id, ratios = step.recorded.token_id, unclipped_ratios(*step.rows, nats)
    ratio, cost = ratios[token_id].item(), (step.star - step.safe)[token_id].item()
    free = max(RESERVE_NATS, step.star[ratios < nats].exp().sum().item())
    mass = step.star[token_id].exp().item()
    by = _cost_moved(step, nats, ratio=ratio, share=mass / (free if ratio < nats else free + mass))
    # A solver's cap and mass are off by less than RESERVE_NATS together, and c makes up for both.
    by_solver = RESERVE_NATS / free
    tolerance = ARITHMETIC + by + max(RESERVE_NATS, by_solver - max(0.0, ratio - nats))
    # Who draws gets the tokens that noise made likelier: on average by half the variance of their
    # log-ratio, and by more where c jumps.
    step.slack = 0.5 * (by / NUM_DEVIATIONS) ** 2 + max(0.0, min(most_scaled, nats - cost))
    step.nats, step.nats_by, step.spend_by = cost, tolerance, tolerance
    step.token_by = step.safe_by + tolerance + step.slack
    lowest, highest = step.log_scales or (-math.inf, math.inf)
    step.log_scales = lowest - by_solver, highest + by_solver


def _cost_moved(step: Step, nats: float, *, ratio: float, share: float) -> float:
    """Nats by which rounding may move the log-ratio of the drawn token: one at its cap costs the
    cap whatever the logits are, any other moves with its logits and with c.

    ratio: that of the token in `unclipped_ratios`. share: what it has, or would have, of all that
    is not clipped.
    """
    if ratio == math.inf:  # all is clipped
        return sum(step.rows_by)
    token_id = step.recorded.token_id

    def tilt(risky: Tensor, safe: Tensor) -> Tensor:
        return reference.log_softmax(risky)[token_id] - reference.log_softmax(safe)[token_id]

    def unclipped(risky: Tensor, safe: Tensor) -> Tensor:
        return unclipped_ratios(risky, safe, nats)[token_id]

    def cost(risky: Tensor, safe: Tensor) -> Tensor:
        return unclipped(risky, safe).clamp(max=nats)

    by_all = moved(cost, step.rows, step.rows_by, along=unclipped)
    # Errors of all logits move c most, and may cut short what those of the token alone do below its
    # cap, less what c takes back of that.
    by_token = moved(tilt, step.rows, step.rows_by) - max(0.0, ratio - nats)
    taken_back = math.log1p(min(share, 1.0 - EPSILON) * math.expm1(-max(0.0, by_token)))
    return max(by_all, by_token + taken_back)


def unclipped_ratios(risky_logits: Tensor, safe_logits: Tensor, nats: float) -> Tensor:
    """log c p_r / p_s of every token, before it is clipped at `nats`; (V,) float64, differentiable.

    Off the common support it is -inf, and inf on it where all is clipped.
    """
    risky, safe = reference.log_softmax(risky_logits), reference.log_softmax(safe_logits)
    is_shared = (risky > -math.inf) & (safe > -math.inf)
    tilt = torch.where(is_shared, risky - safe, -math.inf)
    # c makes the mass of what is not clipped up to 1. It grows with what is, until no more is.
    is_clipped = torch.zeros_like(is_shared)
    while (is_free := is_shared & ~is_clipped).any():
        missing = 1.0 - (safe[is_clipped] + nats).exp().sum()
        log_c = missing.clamp(min=EPSILON).log() - risky[is_free].logsumexp(0)
        above = is_free & (tilt + log_c > nats)
        if not above.any():
            return tilt + log_c
        is_clipped = is_clipped | above
    return tilt.masked_fill(is_shared, math.inf)
