"""vLLM's LLM for a pair: each result says what it spent."""

from __future__ import annotations

import time
from typing import Any

from vllm import LLM

from .journal import LOOK_S, WAIT_S, JournalError, JournalReader
from .settings import EngineSettings


class PairLLM(LLM):
    """An LLM whose results carry `.anchored`; none is returned that the journal does not hold."""

    def __init__(self, settings: EngineSettings, **engine: Any) -> None:
        self.settings = settings
        super().__init__(**engine)
        self._journal = JournalReader(settings.journal, skips_written=True)

    def _run_engine(self, *args: Any, **kwargs: Any) -> Any:
        """Of both `generate` and `chat`: the results, each compared with its record."""
        outputs = super()._run_engine(*args, **kwargs)
        for output in outputs:
            output.anchored = self._answer(output)
            self._journal.forget(output.request_id)
        return outputs

    def _answer(self, output: Any) -> dict[str, Any]:
        (text,) = output.outputs
        token_ids = list(text.token_ids)
        for _ in range(round(WAIT_S / LOOK_S)):
            try:
                return self._journal.answer(output.request_id, token_ids)
            except JournalError:
                time.sleep(LOOK_S)
        return self._journal.answer(output.request_id, token_ids)
