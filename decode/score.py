"""log p* of given continuations, teacher forced, under the same budget rules as generation."""

import math
from dataclasses import dataclass, field

from .budget import Budget
from .level import Level
from .prompt_reading import asks_for_ratios, read_prompts
from .replay import ForcedStep, Replay
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
    replay = Replay(
        rule=rule, warpers=warpers, streams=streams, reading=reading, continuations=merged
    )
    spent = [0.0] * len(requests)
    for forced in replay.steps(lambda step: _allowances(step, budgets, spent)):
        _bank(forced, scores, spent)
    return scores


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


def _allowances(step: int, budgets: list[Budget], spent: list[float]) -> list[float]:
    horizons = zip(budgets, spent, strict=True)
    return [budget.allowance(step, nats) for budget, nats in horizons]


def _bank(forced: ForcedStep, scores: list[Score], spent: list[float]) -> None:
    drawn, token_ids = forced.drawn, forced.token_ids
    is_valid = drawn.is_valid.tolist()
    is_greedy = (drawn.log_probs().argmax(-1) == token_ids).tolist()
    spends, weights = drawn.spend.tolist(), drawn.weight.tolist()
    log_probs = drawn.token_log_probs(token_ids).tolist()
    safe_log_probs = drawn.safe_token_log_probs(token_ids).tolist()
    for row in forced.rows:
        score = scores[row]
        if not is_valid[row]:
            score.error = (
                score.error or f"a model's logits at step {forced.step} are no distribution"
            )
        score.is_greedy = score.is_greedy and is_greedy[row]
        score.token_log_probs.append(log_probs[row])
        score.safe_token_log_probs.append(safe_log_probs[row])
        score.spends.append(spends[row])
        spent[row] += spends[row]
        score.weights.append(weights[row])
