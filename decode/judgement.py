"""p* at many positions of given continuations at once, each under a budget that is tried for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .prompt_reading import PromptReading
from .rules.rule import Rule, StepInputs
from .stream import Stream, chunks
from .warpers import Warpers

# B continuations, C columns and N positions of one block, V symbols.

NEAR_NATS = 1e-9
"""Where more than this is left of an allowance, p* needed no bound; spends are rounded up by less
(`spend.SPEND_QUANTUM`). Nearer to it the rule itself decides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenBlock:
    """Some columns of the continuations: the tokens given there, and what the models say."""

    positions: list[range]
    """By continuation: its positions in this block, in order."""
    token_ids: Tensor
    """(N,) int64."""
    risky_logits: Tensor
    """(N, V), raw, before each token."""
    safe_logits: Tensor
    """(N, V), raw."""
    seen: Tensor
    """(N, V) bool: tokens of the prompt and of the continuation before."""


def given_blocks(
    streams: Mapping[str, Stream], reading: PromptReading, continuations: Sequence[Sequence[int]]
) -> Iterator[GivenBlock]:
    """Continuations of prompts that both streams have just read, some columns at a time."""
    lengths = [len(tokens) for tokens in continuations]
    token_ids = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, tokens in zip(token_ids, continuations, strict=True):
        row[: len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
    is_given = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    seen = reading.seen
    for columns in chunks(seen.shape[1], *token_ids.shape):
        here = is_given[:, columns]
        before = _seen_before(seen, token_ids[:, columns].to(seen.device))
        logits = {
            name: _logits(stream, reading.logits[name], columns, token_ids, is_given)
            for name, stream in streams.items()
        }
        ends = here.sum(1).cumsum(0).tolist()
        yield GivenBlock(
            positions=[range(*span) for span in zip([0, *ends], ends, strict=False)],
            token_ids=token_ids[:, columns][here].to(seen.device),
            risky_logits=logits["risky"][here.to(logits["risky"].device)].to(seen.device),
            safe_logits=logits["safe"][here.to(seen.device)],
            seen=before[:, :-1][here.to(seen.device)],
        )
        seen = before[:, -1]


def _logits(
    stream: Stream, first: Tensor, columns: slice, token_ids: Tensor, is_given: Tensor
) -> Tensor:
    """(B, C, V) before each token of these columns; `first` (B, V) before those of column 0."""
    fed = slice(max(columns.start - 1, 0), columns.stop - 1)
    parts = [first[:, None]] if columns.start == 0 else []
    if fed.start < fed.stop:
        # A token that none follows is not fed, nor is padding: the next column says which.
        mask = is_given[:, fed.start + 1 : fed.stop + 1].long()
        parts.append(stream.feed(token_ids[:, fed], mask))
    return torch.cat(parts, dim=1)


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
    is_most_likely: bool
    """No token is likelier under p*."""

    def holds_for(self, allowance: float) -> bool:
        """Whether p* is the same under this allowance."""
        is_unbound = self.budget == math.inf and self.spend + NEAR_NATS <= allowance
        return is_unbound or self.budget == allowance

    def expected_spend(self, allowance: float) -> float:
        """What is likely spent of an allowance: all but what was left of the budget."""
        if self.budget == math.inf:
            return min(self.spend, allowance)
        left = self.budget - self.spend
        return self.spend if self.weight in (0.0, 1.0) else max(0.0, allowance - left)


class Judgement:
    """What a rule makes of each position of a block, under the last budget that was tried."""

    def __init__(self, rule: Rule, warpers: Warpers, block: GivenBlock) -> None:
        self._rule, self._warpers, self._block = rule, warpers, block
        self._judged: dict[int, Judged] = {}

    def __getitem__(self, position: int) -> Judged:
        return self._judged[position]

    @torch.inference_mode()
    def judge(self, budgets: Mapping[int, float]) -> None:
        """Find p* of some positions, each under its budget in nats."""
        if not budgets:
            return
        block, chosen = self._block, torch.tensor([*budgets], device=self._block.seen.device)
        token_ids = block.token_ids[chosen]
        nats = torch.tensor([*budgets.values()], dtype=torch.float64, device=chosen.device)
        drawn = self._rule.next_token(
            StepInputs(
                risky_logits=block.risky_logits[chosen],
                safe_logits=block.safe_logits[chosen],
                warp=self._warpers.after(block.seen[chosen]),
                budget=nats,
                uniform=None,
            )
        )
        figures = (
            nats,
            drawn.is_valid,
            drawn.spend,
            drawn.weight,
            drawn.token_log_probs(token_ids),
            drawn.safe_token_log_probs(token_ids),
            drawn.log_probs().argmax(-1) == token_ids,
        )
        rows = zip(*(figure.tolist() for figure in figures), strict=True)
        self._judged.update(zip(budgets, map(Judged._make, rows), strict=True))
