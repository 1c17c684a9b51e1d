"""An oracle for projections in extended precision; it shares no code with the project.

Everything here follows from the definitions: log-sum-exp of the logits, the support, the tilted
distribution. On x86 a long double has 64 bits of mantissa, eleven more than a float64.
"""

import numpy as np

BAN_GAP = 1048576.0
"""Nats below a row's largest logit from which on a finite logit counts as banned."""

Array = np.ndarray


def log_probs(logits: Array) -> Array:
    """log softmax of a row (V,), in long double; -inf where banned."""
    logits = logits.astype(np.longdouble)
    above = logits - logits.max()
    above = np.where(above < -BAN_GAP, -np.inf, above)
    return above - np.log(np.exp(above).sum())


def tilted(risky: Array, safe: Array, weight: float) -> Array:
    """log of p_s^(1-w) p_r^w on the tokens that both allow (V,), normalized."""
    p_r, p_s = log_probs(risky), log_probs(safe)
    is_shared = np.isfinite(p_r) & np.isfinite(p_s)
    w = np.longdouble(weight)
    p_s, p_r = np.where(is_shared, p_s, 0.0), np.where(is_shared, p_r, 0.0)
    # Either form loses digits at one end; this one is exact at w = 0.
    mixed = np.where(is_shared, p_s + w * (p_r - p_s), -np.inf)
    mixed = mixed - mixed.max()
    return mixed - np.log(np.exp(mixed).sum())


def clipped(risky: Array, safe: Array, offset: float, ceiling: float) -> Array:
    """log of p_s 2^min(d + offset, ceiling) on the tokens that both allow (V,), not normalized.

    d is the difference of both logits in bits, each below the largest of its row.
    """
    p_r, p_s = log_probs(risky), log_probs(safe)
    is_shared = np.isfinite(p_r) & np.isfinite(p_s)
    risky, safe = (x.astype(np.longdouble) - x.max().astype(np.longdouble) for x in (risky, safe))
    nats_per_bit = np.log(np.longdouble(2))
    tilt = np.where(is_shared, risky, 0) - np.where(is_shared, safe, 0)
    ratio = np.minimum(tilt + nats_per_bit * offset, nats_per_bit * ceiling)
    return np.where(is_shared, p_s + ratio, -np.inf)


def kl_divergence(star: Array, safe: Array) -> float:
    """KL(p* || p_s) in nats, infinite where p* leaves the safe model's tokens; star (V,) log p*."""
    p_s, probs = log_probs(safe), np.exp(star.astype(np.longdouble))
    has_mass = probs > 0
    if np.isneginf(p_s[has_mass]).any():
        return np.inf
    return float((probs[has_mass] * (star[has_mass] - p_s[has_mass])).sum())


def max_divergence(star: Array, safe: Array) -> float:
    """The largest log-ratio in nats over tokens with p* > 0; star (V,) log p*."""
    p_s, has_mass = log_probs(safe), np.isfinite(star)
    return float((star[has_mass] - p_s[has_mass]).max())


def total_mass(star: Array) -> float:
    """Sum of the probabilities."""
    return float(np.exp(star.astype(np.longdouble)).sum())
