"""The law of speculative decoding by enumeration: every round from every state, weighed exactly."""

import itertools
from collections import defaultdict
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from anchored import Anchored, ModelPair
from anchored.decode.engine.request import Request, RequestState
from anchored.decode.engine.speculative_batch import DraftLength, SpeculativeBatch
from anchored.decode.ledger import LedgerStep
from anchored.decode.levels.level import TokenLevel
from anchored.decode.rules.budget import Budget
from anchored.decode.rules.rule import Rule
from anchored.decode.settings import SamplingConfig

PROMPT = [0]
KEPT = -1
PLACES = 64


@dataclass(frozen=True)
class State:
    """Where a round begins."""

    prefix: tuple[int, ...] = ()
    spent: float = 0.0
    is_law_known: bool = True
    """The risky model has read the whole prefix."""


@dataclass
class ScriptedRule(Rule):
    """A rule whose draws are told beforehand, and which weighs each path by their probabilities.

    The uniforms of a position hold its draft, KEPT or the token that replaces it, and the path.
    """

    rule: Anchored
    debt: float
    weights: Tensor = field(default_factory=lambda: torch.ones(0))
    used: list[set[tuple[int, str, int]]] = field(default_factory=list)
    is_direct: bool = False
    """The position was not drafted: its first draw is weighed with the second."""

    is_certified = True
    charges_debt = True
    name = "scripted"

    def budget_for(self, *, horizon, k) -> Budget:
        return self.rule.budget_for(horizon=horizon, k=k)

    def debt_for(self, ratios) -> float:
        return self.debt

    def start(self, num_paths: int) -> None:
        self.weights = torch.ones(num_paths, dtype=torch.float64)
        self.used = [set() for _ in range(num_paths)]

    def next_token(self, inputs):
        projection = self.rule.next_token(replace(inputs, uniform=None))
        if inputs.uniform is None:
            return projection
        star = projection.log_probs().exp()
        safe = inputs.warped("safe").softmax(-1)
        draft, outcome, _ = inputs.uniform.long().unbind(1)
        if self.is_direct:
            self.weigh(inputs, "draft", draft, self.of(self.draft_law(safe), draft))
        ratio = (self.of(star, draft) / self.of(safe, draft)).nan_to_num(0.0).clamp(max=1.0)
        replacement = outcome.clamp(min=0)
        other = self.of(self.replacement_law(star, safe), replacement)
        is_kept = outcome == KEPT
        self.weigh(inputs, "outcome", outcome, torch.where(is_kept, ratio, (1.0 - ratio) * other))
        token_ids = torch.where(is_kept, draft, replacement)
        return replace(projection, token_ids=token_ids, accepted=is_kept)

    def draft_law(self, safe: Tensor) -> Tensor:
        return safe

    def replacement_law(self, star: Tensor, safe: Tensor) -> Tensor:
        residual = (star - safe).clamp(min=0.0)
        return (residual / residual.sum(-1, keepdim=True)).nan_to_num(0.0)

    def of(self, law: Tensor, token_ids: Tensor) -> Tensor:
        return law.gather(1, token_ids[:, None])[:, 0]

    def weigh(self, inputs, kind: str, choices: Tensor, probs: Tensor) -> None:
        codes = inputs.uniform[:, 2].long().tolist()
        for code, choice, prob in zip(codes, choices.tolist(), probs.tolist(), strict=True):
            path, place = divmod(code, PLACES)
            self.weights[path] *= prob
            self.used[path].add((place, kind, choice))


class ScriptedBatch(SpeculativeBatch):
    """Begins anywhere and guesses by script; all else is the batch under test."""

    scripts: Tensor

    def _uniforms(self, request: Request) -> Tensor:
        return self.scripts[request.index]

    def _guessed(self, inputs):
        draft = inputs.uniform[:, 0].long()
        safe = inputs.warped("safe").softmax(-1)
        self.rule.weigh(inputs, "draft", draft, self.rule.of(self.rule.draft_law(safe), draft))
        return draft

    def _draw(self, rows):
        self.rule.is_direct = True
        super()._draw(rows)
        self.rule.is_direct = False

    def begin(self, states: list[State], horizon: int) -> list[RequestState]:
        """One request a path, `states[path]` behind its prompt."""
        requests = [
            Request(prompt_token_ids=PROMPT, max_new_tokens=horizon, index=i)
            for i in range(len(states))
        ]
        begun = self.admit(requests)
        for row, (state, request) in enumerate(zip(states, begun, strict=True)):
            request.steps.extend(_step(place, token) for place, token in enumerate(state.prefix))
            request.spent = state.spent
            self._count_budgets([row])
            self._seen[row, list(state.prefix)] = True
            for token in state.prefix[:-1]:
                for pending in self._pending.values():
                    pending.add(row, token)
        with torch.inference_mode():
            for name in self.streams:
                self._read(name, list(range(len(states))))
            for row, state in enumerate(states):
                for name in self.streams if state.prefix else ():
                    self._pending[name].add(row, state.prefix[-1])
            self._read("risky", [row for row, state in enumerate(states) if state.is_law_known])
        return begun


def _step(place: int, token: int) -> LedgerStep:
    figures = dict.fromkeys(("budget", "spend", "weight", "log_prob", "safe_log_prob"), 0.0)
    return LedgerStep(step=place, token_id=token, accepted=True, **figures)


@dataclass(frozen=True, kw_only=True)
class Enumeration:
    """The settings of one enumeration."""

    pair: ModelPair
    rule: ScriptedRule
    gamma: int
    horizon: int
    sampling: SamplingConfig = field(
        default_factory=lambda: SamplingConfig(temperature=1.0, repetition_penalty=1.0)
    )

    def law(self) -> tuple[dict[tuple[int, ...], float], float]:
        """(probability of every text, expected spend in nats)."""
        open_states = {State(): 1.0}
        law: dict[tuple[int, ...], float] = defaultdict(float)
        spend = 0.0
        while open_states:
            length = min(len(state.prefix) for state in open_states)
            states = {s: p for s, p in open_states.items() if len(s.prefix) == length}
            open_states = {s: p for s, p in open_states.items() if s not in states}
            for state, is_finished, prob in self._round(states):
                if is_finished:
                    law[state.prefix] += prob
                    spend += prob * state.spent
                else:
                    open_states[state] = open_states.get(state, 0.0) + prob
        return dict(law), spend

    def _round(self, states: dict[State, float]):
        """(state, whether the text has ended, probability) of every outcome of a round."""
        paths = [(state, script) for state in states for script in self._scripts(state)]
        batch = ScriptedBatch(
            TokenLevel(self.pair),
            self.rule,
            self.sampling,
            num_rows=len(paths),
            max_length=len(PROMPT) + self.horizon,
            length=DraftLength((self.gamma,)),
        )
        batch.scripts = torch.tensor([script for _, script in paths], dtype=torch.float64)
        batch.scripts[:, :, 2] = (
            torch.arange(self.horizon) + PLACES * torch.arange(len(paths))[:, None]
        )
        begun = batch.begin([state for state, _ in paths], self.horizon)
        self.rule.start(len(paths))
        batch.step()
        told = set()
        for path, (request, (state, _)) in enumerate(zip(begun, paths, strict=True)):
            key = (state, frozenset(self.rule.used[path]))
            prob = states[state] * self.rule.weights[path].item()
            if key in told or prob == 0.0:
                continue
            told.add(key)
            assert not request.error
            prefix = tuple(step.token_id for step in request.steps)
            is_known = not request.is_finished and batch._pending["risky"].is_empty(path)
            yield State(prefix, request.spent, is_known), request.is_finished, prob

    def _scripts(self, state: State):
        """Choices (draft, outcome, 0) of all positions that a round from here may come to."""
        start, tokens = len(state.prefix), range(self.pair.vocab_size)
        budget = self.rule.budget_for(horizon=self.horizon, k=None)
        budget = replace(budget, debt=self.rule.debt)
        is_cold = budget.allowance(start, state.spent) <= 0.0
        is_direct = state.is_law_known or is_cold
        first = start + is_direct
        num_drafts = min(self.gamma, self.horizon - first)
        directs = [(x, o) for x in tokens for o in ([KEPT] if is_cold else [KEPT, *tokens])]
        stops = [(None, KEPT), *itertools.product(range(num_drafts), tokens)]
        for direct in directs if is_direct else [()]:
            for drafts in itertools.product(tokens, repeat=num_drafts):
                for place, other in stops:
                    outcomes = [other if i == place else KEPT for i in range(num_drafts)]
                    chosen = [direct] * is_direct + list(zip(drafts, outcomes, strict=True))
                    rest = self.horizon - start - len(chosen)
                    choices = [(0, KEPT)] * start + chosen + [(0, KEPT)] * rest
                    yield [(*choice, 0) for choice in choices]
