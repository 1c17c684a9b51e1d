"""Plain float64 definitions of the projections: slow, exact, and the ground truth of the tests."""

import torch
from torch import Tensor

# B requests, V vocabulary.

NUM_BISECTIONS = 200


def log_softmax(logits: Tensor) -> Tensor:
    """(B, V) float64 log-probabilities; -inf where banned."""
    return logits.double().log_softmax(-1)


def tilted_log_probs(risky_logits: Tensor, safe_logits: Tensor, weight: Tensor) -> Tensor:
    """log of p_s^(1-weight) p_r^weight, normalised on the common support.

    risky_logits, safe_logits: (B, V) with a token allowed by both. weight: (B,) in [0, 1].
    Returns: (B, V) float64, -inf off the common support.
    """
    safe, risky = log_softmax(safe_logits), log_softmax(risky_logits)
    is_shared = (safe > -torch.inf) & (risky > -torch.inf)
    beta = weight.double()[:, None]
    mixed = torch.where(is_shared, (1.0 - beta) * safe + beta * risky, -torch.inf)
    return mixed.log_softmax(-1)


def kl_divergence(log_probs: Tensor, safe_logits: Tensor) -> Tensor:
    """KL(p || p_s) in nats, (B,) float64; log_probs (B, V) has no mass where p_s has none."""
    safe = log_softmax(safe_logits)
    has_mass = log_probs > -torch.inf
    difference = torch.where(has_mass, log_probs.double() - safe, 0.0)
    return (log_probs.double().exp() * difference).sum(-1)


def max_divergence(log_probs: Tensor, safe_logits: Tensor) -> Tensor:
    """D_inf(p || p_s) in nats, the largest log-ratio, (B,) float64."""
    has_mass = log_probs > -torch.inf
    difference = log_probs.double() - log_softmax(safe_logits)
    return torch.where(has_mass, difference, -torch.inf).amax(-1)


def support_floor(risky_logits: Tensor, safe_logits: Tensor) -> Tensor:
    """-log p_s(S) in nats, S the tokens both models allow, (B,) float64; inf if S is empty."""
    is_shared = (risky_logits > -torch.inf) & (safe_logits > -torch.inf)
    return -torch.where(is_shared, log_softmax(safe_logits), -torch.inf).logsumexp(-1)


def project_kl(risky_logits: Tensor, safe_logits: Tensor, budget: Tensor) -> Tensor:
    """The largest feasible weight, (B,) float64, by bisection; NaN where p* = p_s is forced.

    Source: paper algorithm ProjectKL with the support rules: nothing but p_s where the budget is
    not positive or below `support_floor`.
    """
    budget = budget.double()
    low, high = torch.zeros_like(budget), torch.ones_like(budget)
    for step in range(NUM_BISECTIONS):
        # The first trial is 1 itself: p_r restricted to the common support may be feasible.
        trial = high if step == 0 else 0.5 * (low + high)
        log_probs = tilted_log_probs(risky_logits, safe_logits, trial)
        is_feasible = kl_divergence(log_probs, safe_logits) <= budget
        low, high = torch.where(is_feasible, trial, low), torch.where(is_feasible, high, trial)
    is_forced = (budget <= 0.0) | (support_floor(risky_logits, safe_logits) > budget)
    return torch.where(is_forced, torch.nan, low)


def clipped_probs(
    risky_logits: Tensor, safe_logits: Tensor, budget: Tensor, log_scale: Tensor
) -> Tensor:
    """min(c p_r, e^budget p_s) on the common support, not normalised; (B, V) float64.

    p_r is renormalised on the common support. log_scale: (B,) float64, log c.
    """
    safe, risky = log_softmax(safe_logits), log_softmax(risky_logits)
    is_shared = (safe > -torch.inf) & (risky > -torch.inf)
    risky = torch.where(is_shared, risky, -torch.inf).log_softmax(-1)
    clipped = torch.minimum(risky + log_scale[:, None], safe + budget.double()[:, None])
    return torch.where(is_shared, clipped, -torch.inf).exp()


def project_max(risky_logits: Tensor, safe_logits: Tensor, budget: Tensor) -> Tensor:
    """log c of the clipped law, (B,) float64, by bisection; NaN where p* = p_s is forced.

    Source: paper, proposition on optimal Renyi clipping.
    """
    budget = budget.double()
    low, high = torch.zeros_like(budget), torch.full_like(budget, 1e5)
    for _ in range(NUM_BISECTIONS):
        trial = 0.5 * (low + high)
        mass = clipped_probs(risky_logits, safe_logits, budget, trial).sum(-1)
        low, high = torch.where(mass <= 1.0, trial, low), torch.where(mass <= 1.0, high, trial)
    is_forced = (budget <= 0.0) | (support_floor(risky_logits, safe_logits) > budget)
    return torch.where(is_forced, torch.nan, low)
