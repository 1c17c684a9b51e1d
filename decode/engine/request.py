"""One generation: what was asked for, how far it has come, and how its row of a batch draws."""

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ...fields import INT_LIMIT
from ..ledger import SAMPLER, LedgerHeader, LedgerStep
from ..levels.level import Level
from ..rules.budget import Budget, prompt_digest
from ..rules.rule import NextToken, OpenRule, Rule, StreamName, token_spend
from ..settings import RequestError, SamplingConfig
from ..streams.kv_cache import uploaded
from ..streams.stream import Stream, WarpingStream
from ..tokenizer.text import TextStream
from .log_probs import TokenLogProbs


def random_key(seed: int, prompt: list[int], *, level: str, place: int) -> int:
    """The key, in [0, 2**63), of the uniforms that draw one request; positions count from 0.

    prompt: its symbols at this level. place: how many requests of its call before it have the same
    prompt and the same seed.
    Bounds of several texts add up where the texts are drawn independently. A conversation goes on
    with one seed, samples have one prompt too: the hash gives each another key. Two of n
    requests share one with a probability below n**2 / 2**64.
    """
    named = f"{SAMPLER} {seed} {level} {prompt_digest(prompt)} {place}"
    return int.from_bytes(hashlib.sha256(named.encode()).digest()[:8], "big") >> 1


def random_stream(prompt: list[int], *, place: int) -> dict[str, Any]:
    """Record of the key in a ledger, next to level and seed."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A prompt and what decides its continuation, together with the rule and the warpers."""

    prompt_token_ids: list[int]
    max_new_tokens: int = 1
    seed: int = 0
    k: float | None = None
    """Nats per step in place of the rule's k."""
    stop: tuple[str, ...] = ()
    index: int = 0
    """Among the generations of the call."""
    place: int = 0
    """Requests of the call before it with the same prompt and seed: see `random_key`."""
    num_return_sequences: int = 1
    """Samples of this prompt that the call returns."""
    prior_bound: float = 0.0
    """Nats that the end of the prompt may have spent, where an earlier generation wrote it."""
    earlier_charge: str | None = None
    """The `charge` of a certified text that goes on; None of any other."""
    left_in_bank: float = math.inf
    """Nats that the earlier text left to go on with, see `Budget.left_in_bank`."""
    passage: str | None = None
    """A text for the streams that read one before the prompt."""
    chat_prompts: Mapping[StreamName, list[int]] = field(default_factory=dict)
    """Symbols of a conversation that streams of the risky model read in place of the prompt."""
    stream_prompts: Mapping[StreamName, list[int]] = field(default_factory=dict)
    """Symbols by stream, for streams that read something else than the prompt: `chat_prompts`, or
    a preface and the prompt."""
    error: str = ""
    """Why it cannot be decoded, "" if it can."""
    rule: OpenRule | None = None
    """Replaces the batch's rule; it reads the same streams."""
    sampling: SamplingConfig | None = None
    """Replaces the batch's sampling."""
    least_debt: float = 0.0
    """Nats of debt that the prompt has at least."""
    num_top: int | None = None
    """Likeliest tokens whose log-probabilities under p_s are kept of each place; None keeps none,
    not of the drawn tokens either."""
    exposes: bool = False
    """They are kept under p*, which tells of tokens that no nats were paid for."""
    echoes: bool = False
    """They are kept of the prompt too, each token after those before it."""
    ignores_ends: bool = False
    """The text goes on after a token that would end it."""
    earlier_call: tuple[Hashable, ...] | None = None
    """A name of the call in which the end of the prompt was drawn as one of several samples."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < INT_LIMIT:
            raise ValueError(f"seed must be in [0, 2**63), got {self.seed}")
        if "" in self.stop:
            raise ValueError("stop must not hold an empty string")

    @property
    def longest_prompt(self) -> list[int]:
        """Symbols that the stream with most of them reads before the first new token."""
        return max([self.prompt_token_ids, *self.stream_prompts.values()], key=len)

    @property
    def max_length(self) -> int:
        """Tokens of the longest prompt and the longest continuation."""
        return len(self.longest_prompt) + self.max_new_tokens


TOKEN, SPEND = 0, 3
"""Columns of `ledger_columns` that more than the ledger reads."""
NUM_COLUMNS = 7


def ledger_columns(drawn: NextToken, budget: Tensor, safe_logits: Tensor | None) -> Tensor:
    """The columns of a step, in the order of `LedgerStep`: what is drawn, and what it costs.

    budget: (A,) float64 nats. safe_logits: (A, V) warped, read where `drawn` accepts nothing as it
    is greedy: the safe model would take the token where it is its likeliest one.
    Returns: (A, 7) float64 where the models are, which holds each of them exactly: token id, -1
    where nothing can be drawn; accepted; budget, spend; weight; log p*, and log p_s, NaN where the
    safe model is not read.
    """
    token_ids, accepted, log_probs = drawn.token_ids, drawn.accepted, drawn.stored_log_probs
    spend = drawn.spend
    if token_ids is None:  # greedy
        token_ids = drawn.log_probs().argmax(-1)
        spend = token_spend(drawn, token_ids)
    token_ids = token_ids.masked_fill(~drawn.is_valid, -1)
    if accepted is None:
        accepted = torch.zeros_like(token_ids, dtype=torch.bool)
        if safe_logits is not None:
            accepted = token_ids == safe_logits.argmax(-1)
    if log_probs is None:
        drawable = token_ids.clamp(min=0)
        log_probs = drawn.token_log_probs(drawable), drawn.safe_token_log_probs(drawable)
    columns = token_ids, accepted, budget, spend, drawn.weight, *log_probs
    return torch.stack([column.double() for column in columns], dim=1)


def ledger_step(step: int, figures: Sequence[float]) -> LedgerStep:
    """The 0-based step of one request; figures: a row of `ledger_columns`, on the host."""
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
    """Text that each step made certain: whole characters only, "" while a character or a
    possible stop string is incomplete."""
    log_probs: list[TokenLogProbs] = field(default_factory=list)
    """Log-probabilities of each step, where the request wants them."""
    prompt_log_probs: list[TokenLogProbs] = field(default_factory=list)
    """Log-probabilities of the prompt's tokens but the first, where the request wants them."""
    num_forwards: Counter[str] = field(default_factory=Counter)
    """Forwards by model that the request took part in."""
    work: dict[str, dict[str, float]] = field(default_factory=dict)
    """Work by model, once finished, where that is not one forward per symbol."""
    num_skipped: int = 0
    """Tokens that were drawn before the risky model had run for them."""
    num_drafted: int = 0
    """Tokens that the safe model guessed before the risky one ran."""
    num_accepted: int = 0
    """Drafted tokens that were drawn."""
    finish_reason: str = ""
    error: str = ""

    @property
    def is_finished(self) -> bool:
        return bool(self.finish_reason)

    @property
    def prior_bound(self) -> float:
        """Nats of the request's prior bound, with those that the debt of a drawn text takes from
        the bound of what goes on: that debt depends on the draw, and a bound of both texts has to
        hold before anything is drawn."""
        request = self.request
        if request.earlier_charge is None or self.budget.bound == math.inf:
            return request.prior_bound
        most = self.budget.most_bound(request.least_debt)
        return request.prior_bound + request.num_return_sequences * (most - self.budget.bound)

    def fail(self, message: str) -> None:
        """End the request with an error; what was drawn so far stays."""
        self.finish_reason, self.error = "error", message

    def append(self, step: LedgerStep, *, is_end: bool) -> None:
        """Enter the token's step and keep the text that it makes certain.

        Tokens that the tokenizer cannot decode fail the request.
        """
        # First, as an interrupt may come anywhere: no step is without its text.
        self.texts.append("")
        self.steps.append(step)
        try:
            text = "" if is_end else self.text.push(step.token_id)
            if is_end:
                self.finish_reason = "stop_token"
            elif self.text.is_stopped:
                self.finish_reason = "stop_string"
            elif len(self.steps) == self.request.max_new_tokens:
                self.finish_reason = "length"
            self.texts[-1] = text + (self.text.finish() if self.is_finished else "")
            if self.finish_reason == "length" and self.text.is_stopped:
                self.finish_reason = "stop_string"  # in U+FFFD, which the end made certain
        except RequestError as error:
            self.fail(str(error))


def request_budget(request: Request, rule: OpenRule, ratios: Tensor) -> Budget:
    """The request's budget; `ratios` (num_positions,) float64 are its prompt's, in nats."""
    budget = rule.budget_for(horizon=request.max_new_tokens, k=request.k)
    return replace(budget, debt=max(rule.debt_for(ratios), request.least_debt))


def refused(request: Request, rule: Rule | OpenRule, text: TextStream) -> RequestState:
    """A request that is not read, as it has an error."""
    budget = rule.budget_for(horizon=request.max_new_tokens, k=request.k)
    state = RequestState(request=request, budget=budget, text=text)
    state.fail(request.error)
    return state


def warn_of_safe_only(budgets: Sequence[Budget]) -> None:
    """One line if debts leave some requests nothing to spend."""
    if indebted := [budget for budget in budgets if budget.debt > 0 and budget.is_safe_only]:
        text = "prefix debt %.4g >= K %.4g: the safe model decodes alone (%d of %d requests)"
        figures = indebted[0].debt, indebted[0].total, len(indebted), len(budgets)
        logger.warning(text, *figures)


# A rows that a step draws for, V symbols of the level.


class RowSettings:
    """The rule, the sampling settings and the warpers of each row: those of the batch, unless its
    request names others."""

    def __init__(
        self, level: Level, rule: OpenRule, sampling: SamplingConfig, num_rows: int
    ) -> None:
        self._of_batch = rule, sampling
        self._warpers_of = lru_cache(num_rows + 1)(level.warpers)
        self.rules, self.sampling = [rule] * num_rows, [sampling] * num_rows
        self._warpers = [self._warpers_of(sampling)] * num_rows

    def begin(self, row: int, request: Request, streams: Mapping[str, Stream]) -> None:
        """A request takes a row, whose streams warp as it asks, where they warp."""
        rule, sampling = request.rule or self._of_batch[0], request.sampling or self._of_batch[1]
        assert rule.streams == self._of_batch[0].streams, "a request's rule reads other streams"
        if sampling != self.sampling[row]:
            for stream in streams.values():
                if isinstance(stream, WarpingStream):
                    stream.set_sampling(row, sampling)
        self.rules[row], self.sampling[row] = rule, sampling
        self._warpers[row] = self._warpers_of(sampling)

    def together(self, rows: Sequence[int]) -> list[list[int]]:
        """Groups of rows that one call of a rule draws for, in order: one where all are alike."""
        groups: dict[Hashable, list[int]] = {}
        for row in rows:
            kind = self.rules[row].next_token, self.sampling[row].is_greedy
            groups.setdefault(kind, []).append(row)
        return list(groups.values())

    def warp(self, rows: Sequence[int], seen: Tensor) -> Callable[[Tensor], Tensor]:
        """Raw logits (A, V) of these rows to warped ones; seen: (A, V) bool, see `Warpers`."""
        alike: dict[SamplingConfig, list[int]] = {}
        for i, row in enumerate(rows):
            alike.setdefault(self.sampling[row], []).append(i)
        if len(alike) == 1:
            return self._warpers[rows[0]].after(seen)
        parts = []
        for of_kind in alike.values():
            index = uploaded(torch.tensor(of_kind), seen.device)
            warpers = self._warpers[rows[of_kind[0]]]
            parts.append((index, warpers.after(seen.index_select(0, index))))

        def warped(logits: Tensor) -> Tensor:
            values = [warp(logits.index_select(0, index)) for index, warp in parts]
            whole = values[0].new_empty(logits.shape)
            for (index, _), part in zip(parts, values, strict=True):
                whole.index_copy_(0, index, part)
            return whole

        return warped
