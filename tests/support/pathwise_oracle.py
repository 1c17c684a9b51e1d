"""Pathwise budgets by their definition, in long double: warpers, p*, the bucket, whole texts.

It shares no code with the project: logits come from plain forwards, everything else from numpy.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import NamedTuple

import long_double_distributions as precise
import numpy as np
import torch

Array = np.ndarray


class Node(NamedTuple):
    """What follows the beginning of a text: log p* and log p_s, (V,) both, and the bucket."""

    star: Array
    safe: Array
    bucket: float
    """Nats, b_t: what the next token may cost."""


def warped(
    logits: Array,
    seen: Iterable[int],
    *,
    temperature: float = 1.0,
    repetition_penalty: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    ends: Sequence[int] = (),
) -> Array:
    """(V,) log-probabilities from the definitions of the warpers, in the order in which they act.

    seen: tokens of the text so far. ends: tokens that end a text, which count as the first one.
    """
    row = logits.astype(np.longdouble)
    for token in set(seen):
        row[token] *= 1 / repetition_penalty if row[token] > 0 else repetition_penalty
    row = row / temperature
    if top_k:
        row[row < np.sort(row)[-top_k]] = -np.inf
    probs = np.exp(precise.log_probs(row))
    ascending = np.argsort(probs)
    row[ascending[:-1][np.cumsum(probs[ascending[:-1]]) <= 1 - top_p]] = -np.inf
    row[np.exp(precise.log_probs(row)) < min_p * np.exp(precise.log_probs(row)).max()] = -np.inf
    log_probs = precise.log_probs(row)
    if len(ends) > 1:
        merged = np.logaddexp.reduce(log_probs[list(ends)])
        log_probs[list(ends)] = -np.inf
        log_probs[min(ends)] = merged
    return log_probs


def clipped(risky: Array, safe: Array, nats: float) -> Array:
    """log min(c p_r, e**nats p_s) on the tokens that both allow, (V,), with c of mass 1; log p_s
    where nothing may be spent, or no such c is."""
    is_shared = np.isfinite(risky) & np.isfinite(safe)
    if nats <= 0 or not is_shared.any():
        return safe
    caps, weights = np.exp(nats + safe[is_shared]), np.exp(risky[is_shared])
    if caps.sum() < 1:
        return safe
    # Tokens reach their caps in the order of cap / p_r as c grows: with i of them at theirs, the
    # others share what is left.
    order = np.argsort(caps / weights)
    caps, weights = caps[order], weights[order]
    for count in range(len(order)):
        scale = (1 - caps[:count].sum()) / weights[count:].sum()
        if scale * weights[count] <= caps[count]:
            break
    star = np.full(len(safe), -np.inf, dtype=np.longdouble)
    mass = np.minimum(scale * weights, caps)
    star[np.flatnonzero(is_shared)[order]] = np.log(mass / mass.sum())
    return star


def nodes_of(
    log_probs_of: Callable[[tuple[int, ...]], tuple[Array, Array]],
    *,
    k: float,
    bank: float,
    debt: float,
) -> Callable[[tuple[int, ...]], Node]:
    """A function of the beginnings of texts, which remembers those that it was called with.

    log_probs_of: log p_r and log p_s of what follows a beginning. debt: of the prompt, nats.
    """

    @cache
    def node(begun: tuple[int, ...]) -> Node:
        bucket = np.longdouble(bank) - debt
        if begun:
            before = node(begun[:-1])
            cost = before.star[begun[-1]] - before.safe[begun[-1]]
            bucket = min(before.bucket - cost, np.longdouble(bank))
        risky, safe = log_probs_of(begun)
        return Node(clipped(risky, safe, bucket + k), safe, bucket + k)

    return node


def figures_of(
    node: Callable[[tuple[int, ...]], Node], texts: Sequence[Sequence[int]]
) -> tuple[Array, Array]:
    """log p* and log p_s of each token of texts, (N, H) long double both: 0 after the end of a
    text, and both -inf and 0 from a token on that p* cannot draw."""
    star = np.zeros((len(texts), max(map(len, texts))), dtype=np.longdouble)
    safe = np.zeros_like(star)
    for row, text in enumerate(texts):
        for place, token in enumerate(text):
            here = node(tuple(text[:place]))
            if here.star[token] == -np.inf:
                star[row, place] = -np.inf
                break
            star[row, place], safe[row, place] = here.star[token], here.safe[token]
    return star, safe


def excesses(
    star: Array, safe: Array, *, k: float, bank: float, debt: float
) -> tuple[float, float, float]:
    """The largest log P* - log P_s of any prefix and of any window, above their bounds, and the
    largest share of a whole text's bound that was used; star, safe: as of `figures_of`."""
    is_possible = np.isfinite(star)
    ratios = np.where(is_possible, star, 0) - np.where(is_possible, safe, 0)
    ratios[~is_possible] = -np.inf
    length = star.shape[1]
    sums = {
        (start, end): ratios[:, start:end].sum(1).max()
        for start, end in itertools.combinations(range(length + 1), 2)
    }
    prefix = max(sums[0, end] - max(0.0, bank + k * end - debt) for end in range(1, length + 1))
    window = max(nats - bank - k * (end - start) for (start, end), nats in sums.items())
    bound = max(0.0, bank + k * length - debt)
    return float(prefix), float(window), float(sums[0, length] / bound) if bound else 0.0


def prefix_debt(
    models: Sequence, prompt: Sequence[int], special: Iterable[int], *, mode: str, window: int = 5
) -> float:
    """Nats of debt of a prompt, by its definition; models: the safe and the risky one."""
    with torch.no_grad():
        rows = [model(torch.tensor([prompt])).logits[0, :-1].numpy() for model in models]
    log_probs = [
        np.array([precise.log_probs(row)[t] for row, t in zip(logits, prompt[1:], strict=True)])
        for logits in rows
    ]
    is_text = ~np.isin(prompt[1:], list(special))
    ratios = (log_probs[1] - log_probs[0])[is_text]
    if mode == "top":
        return float(np.sort(np.maximum(ratios, 0))[::-1][:window].mean())
    return float(max(0, ratios.mean())) if mode == "average" else 0.0
