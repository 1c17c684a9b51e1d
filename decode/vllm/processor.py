"""The hook of vLLM's V2 runner: each row of logits becomes the one token that was drawn from p*.

The front end loads this file too, to refuse requests, so it imports no module of the runner.
"""

from __future__ import annotations

from typing import Any
from weakref import ReferenceType

from torch import Tensor
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

from ..serving.asked import Limits
from .admission import admit
from .settings import EngineSettings

current: ReferenceType[Any] | None = None
"""The `PairState` whose forward was prepared last: an engine draws after its forward, in one
thread. Weakly, so that an engine that was shut down holds no memory."""

limits = Limits()
"""The limits of requests that this process's front end admits; set where an engine is opened. The
processes of the engine read theirs from its config."""


class AnchoredDraw(LogitsProcessor):
    """The engine's sampler runs after it, on rows that leave it no choice."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise ValueError for a request that cannot be honored; see `admission`."""
        admit(sampling_params, limits)
        # The debt needs all rows of the prompt; no later hook is asked before they are read.
        sampling_params.skip_reading_prefix_cache = limits.rule.charges_debt

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        super().__init__(vllm_config, req_states)
        EngineSettings.of(vllm_config.additional_config)  # refuses another engine

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Every request is drawn here."""
        return True

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        """(R, V): rows that are -inf but for one token."""
        state = None if current is None else current()
        if state is None:
            raise RuntimeError("the model that runs is no pair")
        tokens = state.draw(ctx, len(logits))
        return logits.fill_(float("-inf")).scatter_(1, tokens[:, None], 0.0)
