"""Anchored Decoding from the first line to the last: read this file first.

It is the paper's algorithm AnchoredDecode for one text and two Hugging Face models that share a
tokenizer. Every step reads the whole text again in plain forwards, and the projections are the
float64 definitions of `kernels/reference.py`: no caches, no batches, no solvers. `Decoder` does the
same a thousand times faster, and the tests hold that its distributions, spends and tokens are
these. All figures are in nats; (V,) is a vector over the vocabulary.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel

from ..kernels import reference
from ..kernels.sampler import uniforms


class ReferenceStep(NamedTuple):
    """One token, what it might and did spend, and the distributions that it was drawn from."""

    token_id: int
    accepted: bool  # the safe model's draw was kept
    budget: float  # k_t of the paper
    spend: float  # a_t
    log_probs: Tensor  # (V,) log p*
    safe_log_probs: Tensor  # (V,) log p_s, and below log p_r, after the warpers
    risky_log_probs: Tensor


@torch.inference_mode()
def anchored_decode(
    models: tuple[PreTrainedModel, PreTrainedModel],
    prompt: Sequence[int],
    *,
    K: float,
    max_new_tokens: int,
    key: int,
    stop_token_ids: Sequence[int],
    debt: float = 0.0,
    charge: str = "mean",
    schedule: str = "adaptive",
    bank: float | None = None,
    warpers: LogitsProcessorList | None = None,
) -> Iterator[ReferenceStep]:
    """Draw a continuation whose distribution is at most K nats from the safe model's.

    models: the safe and the risky one. key: of the random numbers, see `random_key`. debt: of the
    prompt, see `prefix_debt`. charge: "mean" charges a step KL(p* || p_s), "worst" its largest
    log-ratio, "drawn" that of its token. bank: nats of K that are there at the start, and the most
    that are carried over. Source: paper, algorithm AnchoredDecode; docs/guarantee.md.
    """
    text, k = list(prompt), (K - (bank or 0.0)) / max_new_tokens
    # Nats before the first step: none but a full bank, or all of K at once for "global".
    balance = (K if schedule == "global" else bank or 0.0) - debt
    numbers = uniforms(torch.tensor([key]), torch.arange(max_new_tokens)[None])[0]
    for t in range(max_new_tokens):
        # 1. Both models predict the next token. Warpers act on both alike and before anything is
        #    compared, so the bound is against the safe model as it would be sampled.
        safe, risky = (next_log_probs(model, text, warpers, stop_token_ids) for model in models)
        # 2. What this step may spend: what is left and k more, or always k for "fixed", which has
        #    no debt (paper, equation adaptive_budget_defn).
        balance += k if schedule == "adaptive" else 0.0
        budget = k if schedule == "fixed" else max(0.0, balance)
        # 3. The distribution nearest to the risky model that this buys.
        star = project(risky, safe, budget, charge)
        # 4. Its token, the safe model's draw wherever p* allows.
        token_id, accepted = draw(safe.exp(), star.exp(), numbers[t])
        # 5. What was spent: the divergence of the whole distribution, whichever token was drawn, or
        #    what this token has become likelier by, negative where it has become less likely.
        if charge == "drawn":
            spend = (star - safe)[token_id].item()
        else:
            divergence = reference.DIVERGENCES["kl" if charge == "mean" else "max"]
            spend = divergence(star[None], safe[None]).item()
        yield ReferenceStep(token_id, accepted, budget, spend, star, safe, risky)
        # 6. Go on after it, unless the text has ended. A bank holds no more than when it was full.
        balance, text = balance - spend, [*text, token_id]
        if bank is not None:
            balance = min(balance, bank)
        if token_id in stop_token_ids:
            return


@torch.inference_mode()
def prefix_debt(
    models: tuple[PreTrainedModel, PreTrainedModel],
    prompt: Sequence[int],
    special_token_ids: Sequence[int],
    window: int = 5,
) -> float:
    """Nats of debt before the first token: a prompt known by heart begins on p_s alone.

    Source: paper, algorithm PrefixDebt.
    """
    # 1. How likely each model finds every token but the first, after those before it; unwarped.
    tokens: Any = torch.tensor(prompt)
    safe, risky = (
        reference.log_softmax(model(tokens[None]).logits[0, :-1]).gather(1, tokens[1:, None])[:, 0]
        for model in models
    )
    # 2. The ratio is large where the risky model has read the text and the safe one has not.
    #    Special tokens say nothing about that.
    is_special = torch.isin(tokens[1:], torch.tensor([*special_token_ids], dtype=torch.int64))
    ratios = (risky - safe).clamp(min=0.0)[~is_special]
    # 3. The mean of the largest few; a prompt without ratios has no debt.
    return ratios.topk(min(window, len(ratios))).values.mean().item() if len(ratios) else 0.0


def next_log_probs(
    model: PreTrainedModel,
    text: Sequence[int],
    warpers: LogitsProcessorList | None,
    stop_token_ids: Sequence[int],
) -> Tensor:
    """(V,) float64 warped log-probabilities of the next token."""
    tokens: Any = torch.tensor([text])
    logits = model(tokens).logits[:, -1]
    log_probs = reference.log_softmax(warpers(tokens, logits) if warpers else logits)[0]
    # The models may end a text by different tokens: all ends are one, the first of them.
    ends = torch.tensor(sorted(stop_token_ids))
    total = log_probs[ends].logsumexp(-1)
    log_probs[ends] = -torch.inf
    log_probs[ends[0]] = total
    return log_probs


def project(risky: Tensor, safe: Tensor, budget: float, charge: str) -> Tensor:
    """(V,) log p*, on the tokens that both models allow; p_s where the budget buys nothing."""
    rows, nats = (risky[None], safe[None]), torch.tensor([budget], dtype=torch.float64)
    if charge == "mean":
        # p_s^(1-w) p_r^w with the largest w that the budget allows (paper, algorithm ProjectKL).
        weight = reference.project_kl(*rows, nats)
        return safe if weight.isnan() else reference.tilted_log_probs(*rows, weight)[0]
    # min(c p_r, e^budget p_s), where c makes it sum to 1 (paper, optimal Renyi clipping).
    log_c = reference.project_max(*rows, nats)
    return safe if log_c.isnan() else reference.clipped_log_probs(*rows, nats, log_c)[0]


def draw(safe: Tensor, star: Tensor, numbers: Tensor) -> tuple[int, bool]:
    """(a token of p*, whether it is the safe model's draw), by three uniform numbers.

    Source: the acceptance rule of speculative sampling, Leviathan et al. 2023, algorithm 1.
    """
    # 1. The safe model's draw, kept as often as p* allows.
    draft = inverse_cdf(safe, numbers[0])
    if numbers[1] * safe[draft] < star[draft]:
        return draft, True
    # 2. Else a token to which p* gives more than p_s: together this is exactly p*.
    return inverse_cdf((star - safe).clamp(min=0.0), numbers[2]), False


def inverse_cdf(weights: Tensor, number: Tensor) -> int:
    """The first token at which the running sum exceeds this share of the whole."""
    sums = weights.cumsum(0)
    return int(torch.searchsorted(sums, number * sums[-1], right=True))
