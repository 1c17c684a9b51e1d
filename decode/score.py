"""log p* of given continuations, teacher forced, under the same budget rules as generation."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from .engine.prompts import PromptReading, asks_for_ratios, read_prompts
from .engine.request import Request, request_budget
from .levels.level import Level
from .models.stream import Stream, chunks
from .rules.budget import Budget
from .rules.rule import NextToken, Past, PastRows, Rule, StepInputs
from .settings import SamplingConfig
from .warpers import Warpers

# B continuations, C columns and N positions of one block, V symbols.

JUDGED_LOGITS = 1 << 22
"""Logits of a model that are judged at once: with four times as many, a CPU spends a third more on
memory that it asks the system for."""
NEAR_NATS = 1e-9
"""Where more than this is left of an allowance, p* needed no bound; spends are rounded up by less
(`spend.SPEND_QUANTUM`). Nearer to it the rule itself decides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenBlock:
    """Some columns of the continuations: the tokens given there, and what the models say."""

    positions: list[range]
    """Each continuation's positions in this block, in order."""
    token_ids: Tensor
    """(N,) int64."""
    logits: dict[str, Tensor]
    """Raw logits (N, V) before each token, one entry a stream."""
    seen: Tensor
    """(N, V) bool: tokens of the prompt and of the continuation before."""
    past: Past | None
    """The continuations before each of the N rows; where asked for."""


def given_blocks(
    streams: Mapping[str, Stream],
    reading: PromptReading,
    continuations: Sequence[Sequence[int]],
    *,
    looks_back: bool,
) -> Iterator[GivenBlock]:
    """Continuations of prompts that the streams have just read, some columns at a time.

    looks_back: with the past of every position.
    """
    lengths = [len(tokens) for tokens in continuations]
    token_ids = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, tokens in zip(token_ids, continuations, strict=True):
        row[: len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
    is_given = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    seen = reading.seen
    past_rows = PastRows(len(lengths), streams)
    for columns in _columns(seen.shape[1], *token_ids.shape):
        here = is_given[:, columns]
        before = _seen_before(seen, token_ids[:, columns].to(seen.device))
        logits = {
            name: _logits(stream, reading.logits[name], columns, token_ids, is_given)
            for name, stream in streams.items()
        }
        logits = {name: _given(rows, here).to(seen.device) for name, rows in logits.items()}
        ends = here.sum(1).cumsum(0).tolist()
        past = _past(past_rows, continuations, columns, logits) if looks_back else None
        yield GivenBlock(
            positions=[range(*span) for span in zip([0, *ends], ends, strict=False)],
            token_ids=token_ids[:, columns][here].to(seen.device),
            logits=logits,
            seen=_given(before[:, :-1], here),
            past=past,
        )
        seen = before[:, -1]


def _columns(vocab_size: int, batch_size: int, num_columns: int) -> Iterator[slice]:
    """The first by itself, as it was read with the prompts: to join it would copy the others."""
    yield slice(0, 1)
    for columns in chunks(vocab_size, batch_size, num_columns - 1):
        yield slice(columns.start + 1, columns.stop + 1)


def _given(values: Tensor, here: Tensor) -> Tensor:
    """(N, V) of (B, C, V) where `here` (B, C) says so; not copied where that is everywhere."""
    return values.flatten(0, 1) if bool(here.all()) else values[here.to(values.device)]


def _past(
    rows: PastRows,
    continuations: Sequence[Sequence[int]],
    columns: slice,
    logits: Mapping[str, Tensor],
) -> Past:
    """The past of each position of a block, whose tokens the rows hold afterwards."""
    pasts, position = [], 0
    for row, tokens in enumerate(continuations):
        for token_id in tokens[columns]:
            pasts.append(rows.of([row]))
            before = {name: all_rows[position : position + 1] for name, all_rows in logits.items()}
            rows.append([row], before, [token_id])
            position += 1
    names = pasts[0].log_probs
    return Past(
        texts=[text for past in pasts for text in past.texts],
        log_probs={name: torch.cat([past.log_probs[name] for past in pasts]) for name in names},
    )


def _logits(
    stream: Stream, first: Tensor, columns: slice, token_ids: Tensor, is_given: Tensor
) -> Tensor:
    """(B, C, V) before each token of these columns; `first` (B, V) before those of column 0."""
    if columns.start == 0:
        return first[:, None]
    fed = slice(columns.start - 1, columns.stop - 1)
    # A token that none follows is not fed, nor is padding: the next column says which.
    return stream.feed(token_ids[:, fed], is_given[:, columns].long())


def _seen_before(seen: Tensor, token_ids: Tensor) -> Tensor:
    """(B, C + 1, V) bool before each token (B, C), and behind the last; seen: (B, V) at first."""
    before = [seen]
    for tokens in token_ids.T:
        before.append(before[-1].scatter(1, tokens[:, None], True))
    return torch.stack(before, dim=1)


class Judged(NamedTuple):
    """A position under one budget; figures in nats."""

    budget: float
    is_valid: bool
    spend: float
    weight: float
    log_prob: float
    safe_log_prob: float
    is_beaten: bool
    """The likeliest token of one of the models is likelier under p*."""

    def holds_for(self, allowance: float) -> bool:
        """Whether p* is the same under this allowance."""
        is_unbound = self.budget == math.inf and self.spend + NEAR_NATS <= allowance
        return is_unbound or self.budget == allowance

    def expected_spend(self, allowance: float) -> float:
        """Nats that are likely spent of an allowance: all but what was left of the budget."""
        if self.budget == math.inf:
            return min(self.spend, allowance)
        left = self.budget - self.spend
        return self.spend if self.weight in (0.0, 1.0) else max(0.0, allowance - left)


class Judgement:
    """A rule's law at each position of a block, under the last budget that was tried."""

    def __init__(self, rule: Rule, warpers: Warpers, block: GivenBlock) -> None:
        self._rule, self._warpers, self._block = rule, warpers, block
        self._judged: dict[int, Judged] = {}
        self._favorites = [logits.argmax(-1) for logits in block.logits.values()]

    def __getitem__(self, position: int) -> Judged:
        return self._judged[position]

    @torch.inference_mode()
    def judge(self, budgets: Mapping[int, float]) -> None:
        """Find p* of some positions, each under its budget in nats."""
        positions, size = [*budgets], max(1, JUDGED_LOGITS // self._block.seen.shape[1])
        for start in range(0, len(positions), size):
            self._judge({i: budgets[i] for i in positions[start : start + size]})

    def _judge(self, budgets: Mapping[int, float]) -> None:
        chosen, nats, drawn = self._law(budgets)
        token_ids = self._block.token_ids[chosen]
        log_probs = drawn.token_log_probs(token_ids)
        rivals = [drawn.token_log_probs(likeliest[chosen]) for likeliest in self._favorites]
        figures = (
            nats,
            drawn.is_valid,
            drawn.spend,
            drawn.weight,
            log_probs,
            drawn.safe_token_log_probs(token_ids),
            (torch.stack(rivals) > log_probs).any(0),
        )
        rows = zip(*(figure.tolist() for figure in figures), strict=True)
        self._judged.update(zip(budgets, map(Judged._make, rows), strict=True))

    @torch.inference_mode()
    def are_most_likely(self, positions: Sequence[int]) -> bool:
        """Whether no token is likelier than the given one at any of these positions."""
        if not positions:
            return True
        chosen, _, drawn = self._law({i: self._judged[i].budget for i in positions})
        return bool((drawn.log_probs().argmax(-1) == self._block.token_ids[chosen]).all())

    def _law(self, budgets: Mapping[int, float]) -> tuple[Tensor, Tensor, NextToken]:
        """Indices of the positions, their budgets (float64) and p*."""
        block = self._block
        chosen = torch.tensor([*budgets], device=block.seen.device)
        nats = torch.tensor([*budgets.values()], dtype=torch.float64, device=chosen.device)
        positions = [*budgets]
        span = range(positions[0], positions[0] + len(positions))
        rows = slice(span.start, span.stop) if positions == [*span] else chosen  # copies nothing
        inputs = StepInputs(
            logits={name: logits[rows] for name, logits in block.logits.items()},
            warp=self._warpers.after(block.seen[rows]),
            budget=nats,
            uniform=None,
            past=None if block.past is None else block.past.of([*budgets]),
        )
        return chosen, nats, self._rule.next_token(inputs)


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
    """log p_s(y_t | y_<t, x); NaN where the rule does not read the safe model."""
    spends: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    is_greedy: bool = True
    """Every token is the most likely one under p*."""
    error: str = ""

    @classmethod
    def of(cls, budget: Budget, tokens: list[int], error: str = "") -> Score:
        """That of no token yet."""
        return cls(
            k=budget.per_step,
            K=budget.total,
            horizon=budget.horizon,
            bound=budget.bound,
            debt=budget.debt,
            token_ids=tokens,
            error=error,
        )

    @property
    def log_prob(self) -> float:
        """Sum of the token log-probabilities; NaN where scoring failed."""
        return math.nan if self.error else math.fsum(self.token_log_probs)

    @property
    def spend(self) -> float:
        """Nats spent along the continuation."""
        return math.fsum(self.spends)

    def append(self, judged: Judged) -> None:
        """Enter the next token; behind one that cannot follow all are impossible."""
        if not judged.is_valid and -math.inf in self.token_log_probs:
            judged = judged._replace(log_prob=-math.inf, safe_log_prob=-math.inf)
        elif not judged.is_valid and not self.error:
            self.error = f"a model's logits at step {len(self.spends)} are no distribution"
        self.is_greedy = self.is_greedy and not judged.is_beaten
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
    stream_prompts = [request.stream_prompts for request in requests]
    longest = max(len(request.longest_prompt) for request in requests)
    streams = level.open_streams(
        len(prompts),
        longest + max(1, *map(len, continuations)) - 1,  # the last symbols are not read
        sampling,
        scores_prompts=asks_for_ratios(level, rule),
        specs=rule.streams,
    )
    rows = list(range(len(prompts)))
    reading = read_prompts(level, streams, prompts, rows, stream_prompts)
    warpers = level.warpers(sampling)
    budgets = [
        request_budget(request, rule, ratios)
        for request, ratios in zip(requests, reading.ratios, strict=True)
    ]
    merged = [[warpers.end_merged(token) for token in tokens] for tokens in continuations]
    scores = [
        Score.of(budget, tokens, error)
        for budget, tokens, error in zip(budgets, merged, reading.errors, strict=True)
    ]
    accounts = [_Account(score, budget) for score, budget in zip(scores, budgets, strict=True)]
    blocks = given_blocks(streams, reading, merged, looks_back=rule.looks_back)
    for block in blocks if any(merged) else ():
        for account, positions in zip(accounts, block.positions, strict=True):
            account.waiting.extend(positions)
        judged = Judgement(rule, warpers, block)
        _bank(judged, accounts)
        for account, positions in zip(accounts, block.positions, strict=True):
            # All of the vocabulary is searched only where no favourite of a model was likelier.
            score = account.score
            score.is_greedy = score.is_greedy and judged.are_most_likely(positions)
    for row, score in enumerate(scores):
        score.error = (score.error and level.outgrown(streams, row)) or score.error
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
        for step, index in enumerate(self.waiting, start=len(self.score.spends)):
            position, nats = judged[index], self.budget.allowance(step, spent)
            if not position.holds_for(nats):
                yield index, nats
            spent += position.expected_spend(nats)


def _bank(judged: Judgement, accounts: Sequence[_Account]) -> None:
    """Decide every position of a block under its own budget.

    First all at once without a bound: where that spends no more than is allowed, it is p*. From the
    first position whose budget binds on, an allowance depends on the spends before it. These are
    guessed from what each position left of its last budget, all are judged at once, and kept as far
    as the guesses were exact: one position at least, and most others after two or three passes, as
    what is left hardly changes with the budget.
    """
    judged.judge({index: math.inf for account in accounts for index in account.waiting})
    while any(account.waiting for account in accounts):
        for account in accounts:
            account.bank(judged)
        judged.judge(dict(x for account in accounts for x in account.expected(judged)))
