"""A request on its way through vLLM: as SamplingParams, and as the engine's processes read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..engine.request import Request
from ..rules.anchored import Anchored
from ..rules.budget import Budget
from ..rules.registry import make_rule
from ..rules.rule import Rule
from ..settings import SamplingConfig
from .pair_description import KEY, PairRule, checked_rule

if TYPE_CHECKING:
    from vllm import SamplingParams


def parameters(
    request: Request,
    rule: Rule,
    sampling: SamplingConfig,
    *,
    request_id: str,
    client_id: str = "",
    **how: Any,
) -> SamplingParams:
    """The parameters by which the engine draws a request, of which `admitted` makes it again.

    request_id: its name in the journal. client_id: by which its client names it. how: fields that
    change no distribution, as where a text ends and how it is handed over.
    """
    from vllm import SamplingParams

    entry = {
        "rule": [rule.name, rule.settings()],
        "k": request.k,
        "sampling": sampling.as_dict(),
        "seed": request.seed,
        "sample": request.place,
        "least_debt": request.least_debt,
        "has_stops": bool(request.stop),
        "request_id": request_id,
        "client_id": client_id,
    }
    return SamplingParams(
        temperature=sampling.temperature,  # of drafts: the rows that vLLM samples hold one token
        max_tokens=request.max_new_tokens,
        ignore_eos=request.ignores_ends,
        # The debt needs all rows of the prompt; no later hook is asked before they are read.
        skip_reading_prefix_cache=rule.charges_debt or None,
        extra_args={KEY: entry},
        **how,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Admitted:
    """A request as the fusion takes it; by default one by which the engine warms up."""

    request_id: str = ""
    """Its name in the journal; "" for one that is no user's, of which the journal holds nothing."""
    rule: PairRule = field(default_factory=lambda: Anchored(k=0.0))
    k: float | None = None
    """Nats per step in place of the rule's k."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    horizon: int
    seed: int = 0
    sample: int = 0
    """Texts of this prompt and seed before it: see `Request.place`."""
    least_debt: float = 0.0
    """Nats of debt that the prompt has at least."""
    client_id: str = ""
    """The id by which the client names its request."""
    ignores_ends: bool = False
    """The text goes on after a token that would end it."""
    has_stops: bool = False
    """Its caller names further ends."""

    @property
    def budget(self) -> Budget:
        """Without the debt of the prompt, which is not known yet."""
        return self.rule.budget_for(horizon=self.horizon, k=self.k)


def admitted(params: SamplingParams) -> Admitted:
    """The request of which `parameters` made these."""
    entry = dict((params.extra_args or {}).get(KEY, {}))
    if entry:
        entry["rule"] = checked_rule(make_rule(*entry["rule"]))
        entry["sampling"] = SamplingConfig(**entry["sampling"])
    length = max(params.max_tokens or 1, 1)
    return Admitted(**entry, horizon=length, ignores_ends=params.ignore_eos)
