"""log p* of continuations, teacher forced, under the same budget rules as generation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...kernels.spend import allowance, charged
from ..levels.level import Level
from ..rules.budget import Budget, BudgetFigures, opened_accounts
from ..rules.rule import OpenRule, Past, PastRows, StepInputs, token_spend
from ..settings import SamplingConfig
from ..streams.stream import Stream, chunks
from ..warpers import Warpers
from .log_probs import TokenLogProbs, top_log_probs
from .prompts import PromptReading, asks_for_ratios, read_prompts
from .request import Request, request_budget

# B continuations, C columns of them at once, N continuations that have a given column, V symbols.


@dataclass(frozen=True, kw_only=True, slots=True)
class ForcedColumn:
    """One position of every continuation that goes on: its tokens, and what the models say."""

    texts: list[int]
    """Indices of these N continuations."""
    token_ids: Tensor
    """(N,) int64."""
    logits: dict[str, Tensor]
    """Raw logits (N, V) before each token, one entry a stream."""
    seen: Tensor
    """(N, V) bool: tokens of the prompt and of the continuation before."""
    past: Past | None
    """The continuations before; where asked for."""

    def inputs(
        self, warpers: Warpers, nats: Sequence[float], uniform: Tensor | None = None
    ) -> StepInputs:
        """The inputs of a rule, with a budget in nats for each of the N continuations."""
        return StepInputs(
            logits=self.logits,
            warp=warpers.after(self.seen),
            budget=torch.tensor(nats, dtype=torch.float64, device=self.seen.device),
            uniform=uniform,
            past=self.past,
        )


@torch.inference_mode()
def forced_columns(
    streams: Mapping[str, Stream],
    reading: PromptReading,
    continuations: Sequence[Sequence[int]],
    *,
    looks_back: bool,
) -> Iterator[ForcedColumn]:
    """Continuations of prompts that the streams have just read, column by column.

    looks_back: with the past of every position.
    """
    lengths, device = [len(tokens) for tokens in continuations], reading.seen.device
    seen, past = reading.seen.clone(), PastRows(len(lengths), streams)
    for columns in _columns(seen.shape[1], len(lengths), max(lengths)):
        # 1. Some columns in one forward of each model.
        logits = {
            name: _logits(stream, reading.logits[name], columns, continuations)
            for name, stream in streams.items()
        }
        ends = [min(columns.stop, length) for length in lengths]
        for column in range(columns.start, columns.stop):
            # 2. One of them, of the texts that are not over before it.
            texts = [row for row, end in enumerate(ends) if column < end]
            tokens = torch.tensor([continuations[row][column] for row in texts], device=device)
            text_column = ForcedColumn(
                texts=texts,
                token_ids=tokens,
                logits={
                    name: torch.stack([before[row][column - ends[row]] for row in texts]).to(device)
                    for name, before in logits.items()
                },
                seen=seen[texts],
                past=past.of(texts) if looks_back else None,
            )
            yield text_column
            # 3. Its tokens are seen by those that follow.
            seen[texts, tokens] = True
            if looks_back:
                past.append(texts, text_column.logits, tokens.tolist())


def _columns(vocab_size: int, batch_size: int, num_columns: int) -> Iterator[slice]:
    """The first by itself, as it was read with the prompts: to join it would copy the others."""
    yield slice(0, min(1, num_columns))
    for columns in chunks(vocab_size, batch_size, num_columns - 1):
        yield slice(columns.start + 1, columns.stop + 1)


def _logits(
    stream: Stream, first: Tensor, columns: slice, texts: Sequence[Sequence[int]]
) -> dict[int, Tensor]:
    """(C, V) by text that goes on: before its tokens of these columns, which are the last ones.

    first: (B, V) before those of column 0.
    """
    if columns.start == 0:
        return dict(enumerate(first[:, None]))
    # A token that none follows is not fed.
    fed = {
        row: list(text[columns.start - 1 : min(columns.stop, len(text)) - 1])
        for row, text in enumerate(texts)
        if len(text) > columns.start
    }
    logits = stream.feed([*fed], [*fed.values()], columns.stop - columns.start)
    return dict(zip(fed, logits, strict=True))


@dataclass(kw_only=True, slots=True)
class Score(BudgetFigures):
    """One scored continuation; all figures in nats."""

    token_ids: list[int]
    token_log_probs: list[float] = field(default_factory=list)
    """log p*(y_t | y_<t, x)."""
    safe_token_log_probs: list[float] = field(default_factory=list)
    """log p_s(y_t | y_<t, x); NaN where the rule does not read the safe model."""
    spends: list[float] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    is_greedy: bool = True
    """Every token is the most likely one under p*."""
    log_probs: list[TokenLogProbs] = field(default_factory=list)
    """log p* of each place, where the request wants them."""
    error: str = ""

    @classmethod
    def of(cls, budget: Budget, tokens: list[int], error: str = "") -> Score:
        """A score without tokens."""
        return cls(**budget.record(), token_ids=tokens, error=error)

    def enter(
        self, log_prob: float, safe_log_prob: float, spend: float, weight: float, *, is_valid: bool
    ) -> None:
        """Append a token. After one that cannot follow, no distribution is one of zeros."""
        if not is_valid and -math.inf in self.token_log_probs:
            log_prob = safe_log_prob = -math.inf
        elif not is_valid and not self.error:
            self.error = f"a model's logits at step {len(self.spends)} are no distribution"
        self.token_log_probs.append(log_prob)
        self.safe_token_log_probs.append(safe_log_prob)
        self.spends.append(spend)
        self.weights.append(weight)

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
    rule: OpenRule,
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
    accounts = opened_accounts(budgets)  # (B, 7)
    num_top = [request.num_top for request in requests]
    for column in forced_columns(streams, reading, merged, looks_back=rule.looks_back):
        _enter(column, rule, warpers, accounts, scores, num_top)
    for row, score in enumerate(scores):
        score.error = (score.error and level.outgrown(streams, row)) or score.error
    return scores


@torch.inference_mode()
def _enter(
    column: ForcedColumn,
    rule: OpenRule,
    warpers: Warpers,
    accounts: Tensor,
    scores: list[Score],
    num_top: Sequence[int | None],
) -> None:
    """Enter one token of every text that goes on into its score, and into its row of the accounts,
    (B, 7). num_top: likeliest tokens of each of the B texts whose log-probabilities are kept."""
    # 1. p* under what each text may spend, which follows from the spends before: so no column is
    #    decided before the last one.
    entered = [scores[i] for i in column.texts]
    nats = allowance(accounts[column.texts]).tolist()
    drawn = rule.next_token(column.inputs(warpers, nats))
    log_probs = drawn.token_log_probs(column.token_ids)
    # 2. Whether a token is the likeliest one, as long as all before it were in some text.
    if any(score.is_greedy for score in entered):
        is_best = drawn.log_probs().argmax(-1) == column.token_ids
        for score, is_likeliest in zip(entered, is_best.tolist(), strict=True):
            score.is_greedy = score.is_greedy and is_likeliest
    # 3. The figures. After a token that cannot follow, an account is closed where tokens are
    #    charged: what is infinitely unlikely gives nothing back.
    spends = token_spend(drawn, column.token_ids).cpu()  # (N,)
    is_closed = spends == -math.inf
    spends = spends.masked_fill(is_closed, 0.0)
    after = charged(accounts[column.texts], spends[:, None])
    accounts[column.texts] = after.masked_fill(is_closed[:, None], 0.0)
    figures = (log_probs, drawn.safe_token_log_probs(column.token_ids), spends, drawn.weight)
    rows_of_figures = zip(*(figure.tolist() for figure in figures), strict=True)
    are_valid = drawn.is_valid.tolist()
    for score, is_valid, values in zip(entered, are_valid, rows_of_figures, strict=True):
        score.enter(*values, is_valid=is_valid)
    # 4. The likeliest tokens of the place.
    for row, text in enumerate(column.texts):
        if (count := num_top[text]) is not None:
            token_id = int(column.token_ids[row])
            scores[text].log_probs += top_log_probs(drawn.log_probs()[[row]], [token_id], count)
