"""A request on its way through vLLM: as SamplingParams, as the engine's processes read it, and as
the journal has its text."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..decoder import Decoder
from ..engine.request import Request, RequestState
from ..rules.anchored import Anchored
from ..rules.budget import Budget
from ..rules.registry import make_rule
from ..rules.rule import Rule
from ..serving.journal_reader import Record
from ..settings import SamplingConfig
from .pair_description import KEY, PairRule, checked_rule

if TYPE_CHECKING:
    from vllm import SamplingParams


def parameters(
    request: Request,
    rule: Rule,
    sampling: SamplingConfig,
    *,
    name: str,
    client_id: str = "",
    **how: Any,
) -> SamplingParams:
    """The parameters by which the engine draws a request, of which `SlotRequest.of` makes it again.

    name: in the journal. client_id: by which its client names it. how: fields that change no
    distribution, as where a text ends and how it is handed over.
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
        "name": name,
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


def begun(decoder: Decoder, request: Request) -> RequestState:
    """A request as a batch of a `Decoder` begins it."""
    rule, level = request.rule or decoder.open_rule, decoder.level
    budget = rule.budget_for(horizon=request.max_new_tokens, k=request.k)
    text = level.text_stream(request.stop, request.prompt_token_ids)
    return RequestState(request=request, budget=budget, text=text)


def follow(state: RequestState, record: Record, num_drawn: int, ends: Container[int]) -> None:
    """Append what the journal has of a text, up to so many steps, as a batch of a `Decoder` would.

    The engine may have drawn on after a stop string. ends: tokens that end the text.
    """
    if not state.steps:
        state.budget = replace(state.budget, debt=record.header.debt)
    for step in record.steps[len(state.steps) : min(num_drawn, record.num_drawn)]:
        state.append(step, is_end=step.token_id in ends)
        if state.is_finished:
            return
    if record.error:
        state.fail(record.error)


@dataclass(kw_only=True, slots=True)
class SlotRequest:
    """A request of the engine, and what is known of it on the host; by default one by which the
    engine warms up."""

    engine_id: str
    prompt: list[int]
    name: str = ""
    """Its name in the journal; "" for one that is no user's, which the journal leaves out."""
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
    ignores_ends: bool
    """The text goes on after a token that would end it."""
    has_stops: bool = False
    """Its caller names further ends."""
    steps: list[tuple[int, float]] = field(default_factory=list)
    """(token, spend) of what was drawn."""
    debt: Tensor | None = None
    """() float64 nats once the prompt was read; None before."""
    ratios: list[Tensor] = field(default_factory=list)
    num_scored: int = 0
    """Positions of the prompt whose ratios are known."""
    is_open: bool = False
    """The journal holds its header."""
    error: str = ""
    is_reported: bool = False
    """The journal holds its error."""
    has_ended: bool = False
    """The journal holds its end."""

    @classmethod
    def of(cls, engine_id: str, prompt: list[int], params: SamplingParams) -> SlotRequest:
        """The request of which `parameters` made these."""
        entry = dict((params.extra_args or {}).get(KEY, {}))
        if entry:
            entry["rule"] = checked_rule(make_rule(*entry["rule"]))
            entry["sampling"] = SamplingConfig(**entry["sampling"])
        length, ignores_ends = max(params.max_tokens or 1, 1), params.ignore_eos
        named: dict[str, Any] = {"horizon": length, "ignores_ends": ignores_ends, **entry}
        return cls(engine_id=engine_id, prompt=prompt, **named)

    @property
    def budget(self) -> Budget:
        """Without the debt of the prompt, which is not known yet."""
        return self.rule.budget_for(horizon=self.horizon, k=self.k)

    def rewound(self, emitted: list[int]) -> bool:
        """Forget what was drawn beyond the tokens that the engine kept; False if these differ."""
        del self.steps[len(emitted) :]
        return [token for token, _ in self.steps] == emitted
