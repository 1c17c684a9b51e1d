"""The ledger of one request."""

from .ledger import Ledger, LedgerHeader
from .model_pair import ModelPair
from .request import RequestState
from .rules.rule import Rule
from .sampling_config import SamplingConfig


def request_ledger(
    pair: ModelPair, rule: Rule, sampling: SamplingConfig, state: RequestState
) -> Ledger:
    """The record of a request so far; a failed or greedy one is not certified."""
    return Ledger(
        header=_header(pair, rule, sampling, state),
        steps=list(state.steps),
        certified=rule.is_certified and not sampling.is_greedy and not state.error,
        finish_reason=state.finish_reason,
        safe_forwards=state.num_forwards["safe"],
        risky_forwards=state.num_forwards["risky"],
        skipped_risky=state.num_skipped,
        drafted=state.num_drafted,
        accepted=state.num_accepted,
    )


def _header(
    pair: ModelPair, rule: Rule, sampling: SamplingConfig, state: RequestState
) -> LedgerHeader:
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
        quantization=pair.quantization,
    )
