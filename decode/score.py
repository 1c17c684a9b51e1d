"""log p* of given continuations, teacher forced, under the same budget rules as generation."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .budget import Budget
from .judgement import Judged, Judgement, given_blocks
from .level import Level
from .prompt_reading import asks_for_ratios, read_prompts
from .request import Request, budget_without_debt, request_budget
from .rules.rule import Rule
from .sampling_config import SamplingConfig


@dataclass(kw_only=True, slots=True)
class Score:
    """One scored continuation; all figures in nats."""

    k: float
    K: float
    horizon: int
    bound: float
    debt: float
    token_ids: list[int]
    token_log_probs: list[float] = field(default_factory=list)
    """log p*(y_t | y_<t, x)."""
    safe_token_log_probs: list[float] = field(default_factory=list)
    """log p_s(y_t | y_<t, x)."""
    spends: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    is_greedy: bool = True
    """Every token is the most likely one under p*."""
    error: str = ""

    @property
    def log_prob(self) -> float:
        """Sum of the token log-probabilities; NaN where scoring failed."""
        return math.nan if self.error else math.fsum(self.token_log_probs)

    @property
    def spend(self) -> float:
        """Nats spent along the continuation."""
        return math.fsum(self.spends)

    def append(self, judged: Judged) -> None:
        """Enter the next token."""
        if not judged.is_valid and not self.error:
            self.error = f"a model's logits at step {len(self.spends)} are no distribution"
        self.is_greedy = self.is_greedy and judged.is_most_likely
        self.token_log_probs.append(judged.log_prob)
        self.safe_token_log_probs.append(judged.safe_log_prob)
        self.spends.append(judged.spend)
        self.weights.append(judged.weight)


def score_batch(
    level: Level,
    rule: Rule,
    sampling: SamplingConfig,
    requests: list[Request],
    continuations: list[list[int]],
) -> list[Score]:
    """Scores of one batch; the horizon of a request is its max_new_tokens."""
    prompts = [request.prompt_token_ids for request in requests]
    longest = max(map(len, prompts)) + max(map(len, continuations))
    streams = level.open_streams(
        len(prompts), longest, sampling, scores_prompts=asks_for_ratios(level, rule)
    )
    reading = read_prompts(level, streams, prompts, list(range(len(prompts))))
    warpers = level.warpers(sampling)
    budgets = [
        request_budget(request, rule, ratios)
        for request, ratios in zip(requests, reading.ratios, strict=True)
    ]
    merged = [[warpers.end_merged(token) for token in tokens] for tokens in continuations]
    scores = [_empty_score(budget, tokens) for budget, tokens in zip(budgets, merged, strict=True)]
    for score, error in zip(scores, reading.errors, strict=True):
        score.error = error
    accounts = [_Account(score, budget) for score, budget in zip(scores, budgets, strict=True)]
    for block in given_blocks(streams, reading, merged):
        for account, positions in zip(accounts, block.positions, strict=True):
            account.waiting.extend(positions)
        _bank(Judgement(rule, warpers, block), accounts)
    return scores


class _Account:
    """A score under way: what it may still spend, and its positions that are not decided."""

    def __init__(self, score: Score, budget: Budget) -> None:
        self.score, self.budget, self.spent = score, budget, 0.0
        self.waiting: deque[int] = deque()

    def bank(self, judged: Judgement) -> None:
        """Enter positions in order, as far as their p* is known under their allowance."""
        while self.waiting:
            position = judged[self.waiting[0]]
            step = len(self.score.spends)
            if not position.holds_for(self.budget.allowance(step, self.spent)):
                return
            self.waiting.popleft()
            self.score.append(position)
            self.spent += position.spend

    def expected(self, judged: Judgement) -> Iterator[tuple[int, float]]:
        """Undecided positions with the allowance expected for them, where p* is not known."""
        spent = self.spent
        for step, place in enumerate(self.waiting, start=len(self.score.spends)):
            position, nats = judged[place], self.budget.allowance(step, spent)
            if not position.holds_for(nats):
                yield place, nats
            spent += position.expected_spend(nats)


def _bank(judged: Judgement, accounts: Sequence[_Account]) -> None:
    """Decide every position of a block under its own budget.

    First all at once without a bound: where that spends no more than is allowed, it is p*. From the
    first position whose budget binds on, an allowance depends on the spends before it. These are
    guessed from what each position left of its last budget, all are judged at once, and kept as far
    as the guesses were exact: one position at least, and most others after two or three passes, as
    what is left hardly changes with the budget.
    """
    judged.judge({place: math.inf for account in accounts for place in account.waiting})
    while any(account.waiting for account in accounts):
        for account in accounts:
            account.bank(judged)
        judged.judge(dict(x for account in accounts for x in account.expected(judged)))


def refused_score(request: Request, rule: Rule, tokens: list[int], error: str) -> Score:
    """The score of a request that was never read."""
    score = _empty_score(budget_without_debt(request, rule), tokens)
    score.error = error
    return score


def _empty_score(budget: Budget, tokens: list[int]) -> Score:
    return Score(
        k=budget.per_step,
        K=budget.total,
        horizon=budget.horizon,
        bound=budget.bound,
        debt=budget.debt,
        token_ids=tokens,
    )
