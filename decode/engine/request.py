"""One generation: what was asked for, and how far it has come."""

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...kernels.spend import STEP, allowance, new_accounts
from ..ledger import SAMPLER, LedgerHeader, LedgerStep
from ..levels.level import TextStream
from ..rules.budget import Budget, prompt_digest
from ..rules.rule import Rule, StreamName


def random_key(seed: int, prompt: list[int], *, level: str, place: int) -> int:
    """The key, in [0, 2**63), of the uniforms that draw one request; positions count from 0.

    prompt: its symbols at this level. place: how many requests of its call before it have the same
    prompt and the same seed.
    Bounds of several texts add up where the texts are drawn independently. A conversation goes on
    with one seed, samples have one prompt too: the hash gives each a key of its own. Two of n
    requests share one with a probability below n**2 / 2**64.
    """
    named = f"{SAMPLER} {seed} {level} {prompt_digest(prompt)} {place}"
    return int.from_bytes(hashlib.sha256(named.encode()).digest()[:8], "big") >> 1


def random_stream(prompt: list[int], *, place: int) -> dict[str, Any]:
    """What a ledger records of the key, beside level and seed."""
    return {"prompt_sha256": prompt_digest(prompt), "place": place}


def recorded_key(header: LedgerHeader) -> int:
    """The key that a ledger says it was drawn by.

    Raises ValueError for an unknown sampler and for a stream that is not that of the header's
    prompt. Any place is taken, as any seed is: both were the caller's choice.
    """
    if header.sampler != SAMPLER:
        raise ValueError(f"sampler must be {SAMPLER}, got {header.sampler!r}")
    place = header.stream.get("place")
    if type(place) is not int or place < 0:
        raise ValueError(f"the stream must have a place, a whole number >= 0, got {place!r}")
    if header.stream != random_stream(header.prompt_token_ids, place=place):
        raise ValueError(f"the stream {header.stream} does not follow from the header's prompt")
    return random_key(header.seed, header.prompt_token_ids, level=header.level, place=place)


logger = logging.getLogger(__name__)

MAX_SEED = 2**63


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A prompt and what decides its continuation beside the rule and the warpers."""

    prompt_token_ids: list[int]
    max_new_tokens: int
    seed: int = 0
    k: float | None = None
    """Nats a step in place of the rule's own k."""
    stop: tuple[str, ...] = ()
    index: int = 0
    """Among the generations of the call."""
    place: int = 0
    """Requests of the call before it with the same prompt and seed: see `random_key`."""
    num_return_sequences: int = 1
    """Samples of this prompt that the call returns."""
    prior_bound: float = 0.0
    """Nats that the end of the prompt may have spent, where an earlier generation wrote it."""
    passage: str | None = None
    """A text for the streams that read one before the prompt."""
    chat_prompts: Mapping[StreamName, list[int]] = field(default_factory=dict)
    """What streams of the risky model read in place of the prompt, of a conversation."""
    stream_prompts: Mapping[StreamName, list[int]] = field(default_factory=dict)
    """Those, and the prompt's symbols behind a preface, by the streams that read more than it."""
    error: str = ""
    """Why it cannot be decoded, "" if it can."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < MAX_SEED:
            raise ValueError(f"seed must be in [0, 2**63), got {self.seed}")
        if "" in self.stop:
            raise ValueError("stop must not hold an empty string")

    @property
    def longest_prompt(self) -> list[int]:
        """What the stream that reads most before the first new token reads."""
        return max([self.prompt_token_ids, *self.stream_prompts.values()], key=len)

    @property
    def max_length(self) -> int:
        """Tokens of the longest prompt and the longest continuation."""
        return len(self.longest_prompt) + self.max_new_tokens


class Drawn(NamedTuple):
    """A step of a whole batch, (B,) each, where the models are; `ledger_step` is a row of it.

    All are exactly float64 numbers, so one transfer can take them; figures in nats.
    """

    token_id: Tensor
    """-1 where nothing can be drawn."""
    accepted: Tensor
    budget: Tensor
    spend: Tensor
    weight: Tensor
    log_prob: Tensor
    safe_log_prob: Tensor
    """NaN where the safe model is not read."""


def ledger_step(step: int, figures: Sequence[float]) -> LedgerStep:
    """The 0-based step of one request; figures: one row of `Drawn`, on the host."""
    token_id, accepted, budget, spend, weight, log_prob, safe_log_prob = figures
    return LedgerStep(
        step=step,
        token_id=int(token_id),
        accepted=bool(accepted),
        budget=budget,
        spend=spend,
        weight=weight,
        log_prob=log_prob,
        safe_log_prob=None if math.isnan(safe_log_prob) else safe_log_prob,
    )


@dataclass(kw_only=True, slots=True)
class RequestState:
    """A request that is being decoded; finished once `finish_reason` is set."""

    request: Request
    budget: Budget
    text: TextStream
    uniforms: Tensor | None = None
    """(max_new_tokens, 3) float64 for the coupled sampler; None samples nothing."""
    steps: list[LedgerStep] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """By step, the text that it made certain: whole characters only, "" while a character or a
    possible stop string is incomplete."""
    num_forwards: Counter[str] = field(default_factory=Counter)
    """By model: forwards that the request took part in."""
    work: dict[str, dict[str, float]] = field(default_factory=dict)
    """By model, once finished: what they computed, where that is not a forward a symbol."""
    num_skipped: int = 0
    """Tokens that were drawn before the risky model had run for them."""
    num_drafted: int = 0
    """Tokens that the safe model guessed before the risky one ran."""
    num_accepted: int = 0
    """Those of them that were drawn."""
    spent: float = 0.0
    finish_reason: str = ""
    error: str = ""

    @property
    def is_finished(self) -> bool:
        return bool(self.finish_reason)

    def fail(self, message: str) -> None:
        """End the request with an error; what was drawn so far stays."""
        self.finish_reason, self.error = "error", message

    def append(self, step: LedgerStep, *, is_end: bool) -> None:
        """Bank the token's spend and keep the text that it makes certain."""
        self.steps.append(step)
        self.spent += step.spend
        text = "" if is_end else self.text.push(step.token_id)
        if is_end:
            self.finish_reason = "stop_token"
        elif self.text.is_stopped:
            self.finish_reason = "stop_string"
        elif len(self.steps) == self.request.max_new_tokens:
            self.finish_reason = "length"
        self.texts.append(text + (self.text.finish() if self.is_finished else ""))


def allowances(states: Sequence[RequestState]) -> Tensor:
    """(A,) float64 nats on the CPU that the next token of each may spend.

    states: of one rule, so that their budgets have one schedule.
    """
    budgets = [state.budget for state in states]
    accounts = new_accounts(
        [budget.per_step for budget in budgets],
        [budget.total for budget in budgets],
        [budget.debt for budget in budgets],
        budgets[0].schedule,
        torch.device("cpu"),
    )
    accounts[:, STEP] = torch.tensor([float(len(state.steps)) for state in states])
    spent = torch.tensor([state.spent for state in states], dtype=torch.float64)
    return allowance(accounts, 0, spent)


def request_budget(request: Request, rule: Rule, ratios: Tensor) -> Budget:
    """The request's budget; `ratios` (num_positions,) float64 are its prompt's, in nats."""
    budget = rule.budget_for(horizon=request.max_new_tokens, k=request.k)
    return replace(budget, debt=rule.debt_for(ratios))


def refused(request: Request, rule: Rule, text: TextStream) -> RequestState:
    """A request that is not read, as it has an error."""
    budget = rule.budget_for(horizon=request.max_new_tokens, k=request.k)
    state = RequestState(request=request, budget=budget, text=text)
    state.fail(request.error)
    return state


def warn_of_safe_only(budgets: Sequence[Budget]) -> None:
    """One line if debts leave some requests nothing to spend."""
    indebted = [budget for budget in budgets if budget.debt > 0 and budget.is_safe_only]
    if indebted:
        logger.warning(
            "prefix debt %.4g >= K %.4g: the safe model decodes alone (%d of %d requests)",
            indebted[0].debt,
            indebted[0].total,
            len(indebted),
            len(budgets),
        )
