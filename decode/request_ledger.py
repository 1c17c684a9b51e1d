"""The ledger of one request."""

from .ledger import Ledger, LedgerHeader
from .level import Level
from .random_key import random_stream
from .request import RequestState
from .rules.rule import Rule
from .sampling_config import SamplingConfig


def request_ledger(
    level: Level, rule: Rule, sampling: SamplingConfig, state: RequestState
) -> Ledger:
    """The record of a request so far; a failed or greedy one is not certified."""
    return Ledger(
        header=_header(level, rule, sampling, state),
        steps=list(state.steps),
        certified=rule.is_certified and not sampling.is_greedy and not state.error,
        finish_reason=state.finish_reason,
        safe_forwards=_num_forwards(state, "safe"),
        risky_forwards=_num_forwards(state, "risky"),
        work=state.work,
        skipped_risky=state.num_skipped,
        drafted=state.num_drafted,
        accepted=state.num_accepted,
    )


def _num_forwards(state: RequestState, name: str) -> int:
    counted = state.work.get(name, {})
    return int(counted.get("num_forwards", state.num_forwards[name]))


def _header(
    level: Level, rule: Rule, sampling: SamplingConfig, state: RequestState
) -> LedgerHeader:
    pair = level.pair
    return LedgerHeader(
        rule=rule.name,
        rule_settings=rule.settings(),
        sampling=sampling.as_dict(),
        seed=state.request.seed,
        prompt_token_ids=state.request.prompt_token_ids,
        stop_token_ids=level.stop_token_ids,
        fingerprints=dict(pair.fingerprints),
        dtype=str(pair.dtype).removeprefix("torch."),
        debt=state.budget.debt,
        k=state.budget.per_step,
        K=state.budget.total,
        horizon=state.budget.horizon,
        bound=state.budget.bound,
        quantization=dict(pair.quantization),
        level=level.name,
        level_settings=level.settings(),
        num_return_sequences=state.request.num_return_sequences,
        prior_bound=state.request.prior_bound,
        stream=random_stream(state.request.prompt_token_ids, place=state.request.place),
    )
