"""Nats in JSON, which has no number for infinite ones."""

import math


def json_nats(nats: float) -> float | str:
    """The number itself, or "inf" or "-inf", as in ledgers."""
    return nats if math.isfinite(nats) else str(nats)
