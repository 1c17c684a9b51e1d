"""The bound of one event: the most that its probability can have grown to within a budget."""

import math
import sys

from ..fields import real_number
from .settings import Divergence

ROUNDING = 8.0 * sys.float_info.epsilon
"""Relative error of nats, more than the few operations on them make; it is added to the budget."""


def event_bound(
    K: float,
    safe_log_prob: float,
    *,
    divergence: Divergence = "kl",
) -> float:
    """The largest probability that an event can have under p*, whose divergence from p_s is <= K.

    In words: suppose that the safe model alone would write a certain passage with probability p (an
    event may be any set of texts: those that hold a sentence, those that a person would call a
    copy). A certified text of bound K then holds it with at most the probability that this function
    returns. It is a statement about the chance of the event before the text is drawn. It does not
    say that a text is no copy, nor what p is, which has to be known or bounded; where the safe
    model copies, p* may copy too. It is no legal certificate.

    K: nats, the ledger's bound (`Ledger.total_bound` for samples and continued texts), >= 0.
    safe_log_prob: log p of the event under the safe model with the same warpers, nats, <= 0.
    divergence: "kl" inverts the binary divergence, the largest q with q log(q/p) + (1 - q)
    log((1 - q)/(1 - p)) <= K; "max", of steps that are charged their worst or their drawn token, is
    e**K p, far less for rare events.
    Returns: a probability, rounded up. Raises ValueError for values out of range.
    Source: data-processing inequality for the event's indicator; paper, section "K-NAF".
    """
    K, safe_log_prob = real_number("K", K), real_number("safe_log_prob", safe_log_prob)
    if not K >= 0.0:
        raise ValueError(f"K must be >= 0 nats, got {K}")
    if not safe_log_prob <= 0.0:
        raise ValueError(f"safe_log_prob must be a log-probability <= 0, got {safe_log_prob}")
    if divergence not in ("kl", "max"):
        raise ValueError(f"divergence must be kl or max, got {divergence!r}")
    if safe_log_prob == -math.inf:
        return 0.0  # what p_s cannot write p* cannot, whatever K is
    if K == 0.0:  # p* is p_s; the logarithm may be rounded
        return _above(math.exp(safe_log_prob) * (1.0 - ROUNDING * safe_log_prob))
    nats = K + ROUNDING * (1.0 + K - safe_log_prob)
    if divergence == "max":
        return _above(math.exp(min(0.0, nats + safe_log_prob)))
    return _inverted(nats, safe_log_prob)


def charged_event_bound(charge: str | None, K: float, safe_log_prob: float) -> float:
    """`event_bound` of texts that are charged so."""
    return event_bound(K, safe_log_prob, divergence=divergence_of(charge))


def divergence_of(charge: str | None) -> Divergence:
    """The divergence of a text from the safe model that a sum of such charges bounds."""
    return "max" if charge in ("worst", "drawn") else "kl"


def _inverted(nats: float, safe_log_prob: float) -> float:
    """The inverse of the binary KL: the upper end of the last interval, rounded up."""
    if -safe_log_prob <= nats:
        return 1.0
    low, high = math.exp(safe_log_prob), 1.0
    while low < (middle := 0.5 * (low + high)) < high:  # until both are neighbors
        if _binary_kl(middle, safe_log_prob) <= nats:
            low = middle
        else:
            high = middle
    return _above(high)


def _binary_kl(prob: float, safe_log_prob: float) -> float:
    """KL of a coin of this probability from one of the safe event's, nats."""
    here = prob * (math.log(prob) - safe_log_prob) if prob > 0.0 else 0.0
    log_rest = math.log(-math.expm1(safe_log_prob)) if safe_log_prob < 0.0 else -math.inf
    return here + (1.0 - prob) * (math.log1p(-prob) - log_rest if prob < 1.0 else 0.0)


def _above(prob: float) -> float:
    """The next larger probability or two: exp and log may be one off."""
    return min(1.0, math.nextafter(math.nextafter(prob, math.inf), math.inf))
