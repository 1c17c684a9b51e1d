"""Calls of the front end to the engine's processes, besides texts."""

from typing import Any

from ...kernels.project import falls_back

EXTENSION = "anchored.decode.vllm.worker.PairWorker"


class PairWorker:
    """Methods that vLLM's workers get from it; they run between two steps."""

    model_runner: Any

    def anchored_noted(self) -> bool:
        """Return once the journal holds all that was drawn, of texts that were broken off too;
        whether the CPU's solver draws here for an accelerator."""
        self.model_runner.model_state.recorder.drain()
        return falls_back()

    def anchored_written(self) -> bool:
        """Whether the journal can be written now."""
        return bool(self.model_runner.model_state.recorder.try_again())
