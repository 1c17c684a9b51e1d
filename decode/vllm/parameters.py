"""A request as vLLM's sampling parameters, of which `admission` makes a request again."""

from typing import TYPE_CHECKING, Any

from ..engine.request import Request
from ..rules.rule import Rule
from ..serving.asked import REQUEST_PREFIX
from ..settings import SamplingConfig
from .admission import HAS_STOPS

if TYPE_CHECKING:
    from vllm import SamplingParams


def parameters(
    request: Request, rule: Rule, sampling: SamplingConfig, *, client_id: str = "", **how: Any
) -> "SamplingParams":
    """The parameters by which the engine draws a request. how: fields that change no distribution,
    as where a text ends and how it is handed over."""
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
