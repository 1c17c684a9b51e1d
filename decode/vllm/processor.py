"""The hook that vLLM loads by name, by which a row of logits becomes the token that was drawn from
p*, and calls of the server to the engine's processes.

The front end loads this file too, so it imports no module of the runner.
"""

from __future__ import annotations

import signal
from typing import Any
from weakref import ReferenceType

from torch import Tensor
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor

from ...kernels.project import falls_back
from .pair_description import KEY, NOT_OURS, EngineSettings

current: ReferenceType[Any] | None = None
"""The `PairState` whose forward was prepared last: an engine draws after its forward, in one
thread. Weakly, so that an engine that was shut down holds no memory."""


class AnchoredDraw(LogitsProcessor):
    """The engine's sampler runs after it, on rows that leave it no choice."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise ValueError for a request that `admission.parameters` did not make."""
        if KEY not in (sampling_params.extra_args or {}):
            raise ValueError(NOT_OURS)

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


class PairWorker:
    """Methods that vLLM's workers get from it; they run between two steps."""

    model_runner: Any

    def anchored_served(self) -> None:
        """Leave Ctrl-C, which reaches all processes of a terminal, to the server, where texts go on
        after it."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def anchored_noted(self) -> bool:
        """Return once the journal holds all that was drawn, of texts that were broken off too;
        whether the CPU's solver draws here for an accelerator."""
        self.model_runner.model_state.recorder.drain()
        return falls_back()

    def anchored_written(self) -> bool:
        """Whether the journal can be written now."""
        return bool(self.model_runner.model_state.recorder.try_again())
