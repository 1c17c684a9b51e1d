"""Whether tokens were drawn from a distribution, by chi-square."""

import math

import torch
from torch import Tensor


def follows(token_ids: Tensor, probs: Tensor) -> bool:
    """Whether none has probability 0 and their counts fit; False once in a million for true draws.

    token_ids: (N,). probs: (V,) float64. Tokens that are expected less than five times count
    together. Source: Wilson and Hilferty 1931.
    """
    counts = torch.bincount(token_ids, minlength=len(probs)).double()
    expected = probs.double() * len(token_ids)
    is_common = expected >= 5.0
    grouped = [torch.cat([x[is_common], x[~is_common].sum()[None]]) for x in (counts, expected)]
    terms = (grouped[0] - grouped[1]) ** 2 / grouped[1].clamp_min(1e-9)
    degrees = max(1, int(is_common.sum()))
    spread = 2.0 / (9.0 * degrees)
    limit = degrees * (1.0 - spread + 4.75 * math.sqrt(spread)) ** 3
    return bool((counts[probs == 0.0] == 0.0).all()) and terms.sum().item() < limit
