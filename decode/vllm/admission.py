"""Requests as sampling parameters of vLLM: which are honored before the projection, and how."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..engine.request import Request
from ..rules.anchored import Anchored
from ..rules.budget import Budget
from ..rules.rule import Rule
from ..serving.asked import REQUEST_PREFIX, Asked, Limits
from ..serving.body import REFUSED, unhonored
from ..settings import SAMPLING_NAMES, SamplingConfig
from .settings import EngineSettings, PairRule, checked_rule

if TYPE_CHECKING:
    from vllm import SamplingParams

# By field of SamplingParams. A field that stands in no table is refused unless it has its default,
# and fails a test: a new version of vLLM has to be looked at.

ASKED: Final = ("max_tokens", "seed", "extra_args", "ignore_eos")
"""Decide the budget, the draws and the end: the horizon, the seed and what `Asked` names."""

REFUSED_HERE: Final = (
    *("presence_penalty", "frequency_penalty", "watermarking", "min_tokens"),
    *("structured_outputs", "logit_bias", "allowed_token_ids", "bad_words"),
    "thinking_token_budget",
)
"""Fields of SamplingParams that `body.REFUSED` has by the same name."""

AFTER_THE_TEXT: Final = {
    "stop": "ends the text, changes no distribution",
    "stop_token_ids": "ends the text, changes no distribution",
    "logprobs": "those of the safe model, raw",
    "prompt_logprobs": "those of the safe model, raw",
    "prompt_logprob_token_ids": "those of the safe model, raw",
    "prompt_logprob_start": "of prompt_logprobs",
    "logprob_token_ids": "those of the safe model, raw",
    "flat_logprobs": "a form of logprobs",
    "detokenize": "text of the tokens",
    "skip_special_tokens": "text of the tokens",
    "spaces_between_special_tokens": "text of the tokens",
    "include_stop_str_in_output": "text of the tokens",
    "output_kind": "how results are handed over",
    "stream_interval": "how results are handed over",
    "skip_clone": "of vLLM's memory",
    "output_text_buffer_length": "follows from stop",
    "_eos_token_id": "of the engine",
    "_all_stop_token_ids": "of the engine, from stop_token_ids",
    "_watermarking_skipped": "of watermarking, which is refused",
    "skip_reading_prefix_cache": "set here: the prefix debt needs all of the prompt",
    "repetition_detection": "ends the text, changes no distribution",
    "routed_experts_prompt_start": "of a report that is refused with its engine argument",
}
"""Change nothing of p*, and why."""

NEUTRAL: Final[dict[str, Any]] = {
    **{name: next(iter(REFUSED[name].neutral), None) for name in REFUSED_HERE},
    "n": 1,
    "_bad_words_token_ids": None,
    "trace_decode_token_ids": None,
}
"""Would change the distribution after the projection, or could not be honored: refused too."""

ON_BY_DEFAULT: Final = ("watermarking",)
"""Fields of NEUTRAL that some releases set: there they do nothing without an engine argument that
is refused."""

HAS_STOPS: Final = "anchored_has_stops"
"""The extra argument of a request whose text others end: the journal says so. It is no client's."""

KNOWN: Final = {*SAMPLING_NAMES, *ASKED, *AFTER_THE_TEXT, *NEUTRAL}


def parameters(
    request: Request, rule: Rule, sampling: SamplingConfig, *, client_id: str = "", **how: Any
) -> "SamplingParams":
    """The parameters by which the engine draws a request, of which `admit` makes it again.

    how: fields that change no distribution, as where a text ends and how it is handed over.
    """
    from vllm import SamplingParams

    nats = ("k", "K", "bank", "divergence")
    asked: dict[str, Any] = {name: value for name, value in rule.settings().items() if name in nats}
    asked |= {} if request.k is None else {"k": request.k}
    asked |= {"debt": request.least_debt, "seed": request.seed, "sample": request.place}
    asked |= {"client_id": client_id} if client_id else {}
    return SamplingParams(
        **sampling.as_dict(),
        max_tokens=request.max_new_tokens,
        extra_args={
            **{REQUEST_PREFIX + name: value for name, value in asked.items()},
            HAS_STOPS: bool(request.stop),
        },
        **how,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Admitted:
    """A request as the fusion takes it."""

    rule: PairRule
    sampling: SamplingConfig
    horizon: int
    seed: int | None
    sample: int
    """Texts of this prompt and seed before it: see `Asked`."""
    least_debt: float
    """Nats that the caller says the prompt owes at least."""
    client_id: str = ""
    """The id by which the client names its request."""
    ignores_ends: bool = False
    """The text goes on after a token that would end it."""
    has_stops: bool = False
    """Its caller names further ends."""

    @property
    def budget(self) -> Budget:
        """Without the debt of the prompt, which is not known yet."""
        return self.rule.budget_for(horizon=self.horizon, k=None)


def admit(params: Any, settings: EngineSettings) -> Admitted:
    """The budget, the warpers and the horizon that SamplingParams ask for.

    Raises ValueError, in one line that names field and value, for one that cannot be honored
    within the bound.
    """
    _refuse_unhonored(params)
    _refuse_special_stops(params.stop, settings.facts.special_names)
    extra = dict(params.extra_args or {})
    has_stops = params.stop or params.stop_token_ids or params.repetition_detection
    has_stops = bool(extra.pop(HAS_STOPS, False) or has_stops)
    asked = Asked.of(extra)
    if params.max_tokens is None:
        raise ValueError("anchored: max_tokens is the horizon of the budget and must be given")
    limits = Limits(rule=settings.rule)
    limits.check_passage(asked)
    rule, seed = limits.rule_of(asked), asked.seed_of(params.seed)
    return Admitted(
        rule=checked_rule(rule),
        sampling=sampling_of(params),
        horizon=params.max_tokens,
        seed=seed,
        sample=asked.sample,
        least_debt=asked.debt,
        client_id=asked.client_id,
        ignores_ends=params.ignore_eos,
        has_stops=has_stops,
    )


def unadmitted(params: Any) -> Admitted:
    """Stands for a request that was refused and came all the same: it will draw nothing."""
    return Admitted(
        rule=Anchored(k=0.0),
        sampling=SamplingConfig(),
        horizon=max(params.max_tokens or 1, 1),
        seed=0,
        sample=0,
        least_debt=0.0,
    )


def sampling_of(params: Any) -> SamplingConfig:
    """The warpers that SamplingParams ask for; vLLM says -1 too for no top_k."""
    named = {name: getattr(params, name) for name in SAMPLING_NAMES}
    return SamplingConfig(**{**named, "top_k": max(params.top_k, 0)})


def _refuse_unhonored(params: Any) -> None:
    for name, neutral in NEUTRAL.items():
        value = getattr(params, name, neutral)
        if name in ON_BY_DEFAULT and value == _default(params, name):
            continue
        if value != neutral and value not in ([], {}, False):
            raise ValueError(unhonored(name, value))
    for name in type(params).__struct_fields__:
        if name not in KNOWN and getattr(params, name) != _default(params, name):
            raise ValueError(f"anchored: {name} is not known here: leave it out")


def _refuse_special_stops(stop: str | Sequence[str] | None, special: Mapping[str, int]) -> None:
    """Raise ValueError, in one line, for stop texts that hold special tokens, by name: the engine
    looks for stops in texts without them."""
    for text in [stop] if isinstance(stop, str) else stop or ():
        for name in special:
            if name in text:
                raise ValueError(
                    f"anchored: stop {text!r} holds the special token {name!r}, which is no text: "
                    f"give stop_token_ids=[{special[name]}]"
                )


def _default(params: Any, name: str) -> Any:
    return getattr(type(params)(), name)
