"""The paired decoding loop: both models, a rule and a sampler over one batch of requests."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..kernels.uniforms import uniforms
from .ledger import Ledger, LedgerHeader, LedgerStep
from .model_pair import ModelPair
from .prompt_reading import PromptReading, read_prompts
from .request import Request, RequestState, request_budget, warn_of_safe_only
from .rules.rule import NextToken, Rule, StepInputs
from .sampling_config import SamplingConfig
from .text_stream import TextStream
from .warpers import Warpers


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step added to one request."""

    text: str
    """Whole characters only; "" while a character or a possible stop string is incomplete."""
    spend: float
    """Nats."""
    accepted: bool
    token_id: int


class PairedBatch:
    """Decodes its requests together; a request's tokens do not depend on the others.

    Rows are independent: own budget, own seed, own history. A row with NaN logits fails alone.
    """

    def __init__(
        self, pair: ModelPair, rule: Rule, sampling: SamplingConfig, requests: list[Request]
    ) -> None:
        self.pair, self.rule, self.sampling = pair, rule, sampling
        self.warpers = Warpers(sampling, pair.stop_token_ids)
        reading = read_prompts(pair, [request.prompt_token_ids for request in requests])
        self.streams, self.logits, self.seen = reading.streams, reading.logits, reading.seen
        self.states = self._initial_states(requests, reading)
        self._uniforms = self._draw_uniforms(requests)
        warn_of_safe_only([state.budget for state in self.states])

    @property
    def is_finished(self) -> bool:
        return all(state.is_finished for state in self.states)

    @torch.inference_mode()
    def step(self) -> list[Piece | None]:
        """Draw the next token of every unfinished request; None for the finished ones."""
        drawn = self.rule.next_token(self._inputs())
        token_ids = self._chosen(drawn)
        pieces = self._record(drawn, token_ids)
        if not self.is_finished:
            self._advance(token_ids)
        return pieces

    def ledger(self, row: int) -> Ledger:
        """The record of one request so far."""
        state = self.states[row]
        return Ledger(
            header=ledger_header(self.pair, self.rule, self.sampling, state),
            steps=list(state.steps),
            certified=self.rule.is_certified and not self.sampling.is_greedy and not state.error,
            finish_reason=state.finish_reason,
            safe_forwards=self.streams["safe"].num_forwards,
            risky_forwards=self.streams["risky"].num_forwards,
        )

    def _initial_states(
        self, requests: list[Request], reading: PromptReading
    ) -> list[RequestState]:
        states = []
        for row, request in enumerate(requests):
            budget = request_budget(request, self.rule, reading.ratios[row])
            text = TextStream(self.pair.tokenizer, request.stop)
            state = RequestState(request=request, budget=budget, text=text)
            if model := reading.broken_models[row]:
                state.fail(f"the {model} model's logits over the prompt are NaN or +inf")
            states.append(state)
        return states

    def _draw_uniforms(self, requests: list[Request]) -> Tensor | None:
        if self.sampling.is_greedy:
            return None
        seeds = torch.tensor([request.seed for request in requests])
        steps = torch.arange(max(request.max_new_tokens for request in requests))
        return uniforms(seeds, steps.expand(len(requests), -1)).to(self.seen.device)

    def _inputs(self) -> StepInputs:
        step = max(len(state.steps) for state in self.states)
        allowances = [state.allowance for state in self.states]
        return StepInputs(
            risky_logits=self.logits["risky"].to(self.seen.device),
            safe_logits=self.logits["safe"],
            warp=partial(self.warpers, seen=self.seen),
            budget=torch.tensor(allowances, dtype=torch.float64, device=self.seen.device),
            uniform=None if self._uniforms is None else self._uniforms[:, step],
        )

    def _chosen(self, drawn: NextToken) -> Tensor:
        """(batch,) token ids; token 0 where nothing can be drawn."""
        token_ids = drawn.log_probs().argmax(-1) if drawn.token_ids is None else drawn.token_ids
        return token_ids.masked_fill(~drawn.is_valid, 0)

    def _record(self, drawn: NextToken, token_ids: Tensor) -> list[Piece | None]:
        accepted = drawn.accepted
        if accepted is None:  # greedy: the token that the safe model would have taken too
            accepted = token_ids == self.warpers(self.logits["safe"], self.seen).argmax(-1)
        budgets = [state.allowance for state in self.states]
        columns = zip(
            self.states,
            drawn.is_valid.tolist(),
            token_ids.tolist(),
            accepted.tolist(),
            budgets,
            drawn.spend.tolist(),
            drawn.weight.tolist(),
            drawn.token_log_probs(token_ids).tolist(),
            drawn.safe_token_log_probs(token_ids).tolist(),
            strict=True,
        )
        return [self._append(row, *values) for row, values in enumerate(columns)]

    def _append(
        self, row: int, state: RequestState, is_valid: bool, *figures: float
    ) -> Piece | None:
        if state.is_finished:
            return None
        if not is_valid:
            state.fail(self._invalid_logits(row, len(state.steps)))
            return None
        token_id, accepted, budget, spend, weight, log_prob, safe_log_prob = figures
        step = LedgerStep(
            step=len(state.steps),
            token_id=int(token_id),
            accepted=bool(accepted),
            budget=budget,
            spend=spend,
            weight=weight,
            log_prob=log_prob,
            safe_log_prob=safe_log_prob,
        )
        text = state.append(step, is_end=step.token_id in self.pair.stop_token_ids)
        return Piece(text, spend, step.accepted, step.token_id)

    def _invalid_logits(self, row: int, step: int) -> str:
        for name, logits in self.logits.items():
            if not torch.isfinite(logits[row].max()):
                return f"the {name} model's logits at step {step} are NaN, +inf or all -inf"
        return f"the warped logits at step {step} are not finite"

    def _advance(self, token_ids: Tensor) -> None:
        columns = token_ids[:, None]
        self.seen.scatter_(1, columns, True)
        for name, stream in self.streams.items():
            self.logits[name] = stream.feed(columns, torch.ones_like(columns))[:, -1]


def ledger_header(
    pair: ModelPair, rule: Rule, sampling: SamplingConfig, state: RequestState
) -> LedgerHeader:
    """What decided the generation, as the ledger records it."""
    return LedgerHeader(
        rule=rule.name,
        rule_settings=rule.settings(),
        sampling=sampling.as_dict(),
        seed=state.request.seed,
        prompt_token_ids=state.request.prompt_token_ids,
        stop_token_ids=pair.stop_token_ids,
        fingerprints=pair.fingerprints,
        dtype=str(pair.dtype).removeprefix("torch."),
        debt=state.budget.debt,
        k=state.budget.per_step,
        K=state.budget.total,
        horizon=state.budget.horizon,
        bound=state.budget.bound,
    )
