"""vLLM's LLM for a pair: each result says what it spent."""

from __future__ import annotations

from typing import Any

from vllm import LLM

from .journal import JournalError, JournalReader, checked_answer
from .settings import EngineSettings


class PairLLM(LLM):
    """An LLM whose results carry `.anchored`; none is returned that the journal does not hold."""

    def __init__(self, settings: EngineSettings, **engine: Any) -> None:
        self.settings = settings
        super().__init__(**engine)
        self._journal = JournalReader(settings.journal)

    def _run_engine(self, *args: Any, **kwargs: Any) -> Any:
        """Of both `generate` and `chat`: the results, each compared with its record."""
        outputs = super()._run_engine(*args, **kwargs)
        self._journal.refresh()
        for output in outputs:
            output.anchored = self._answer(output)
        return outputs

    def _answer(self, output: Any) -> dict[str, Any]:
        (text,) = output.outputs
        record = self._journal.find(output.request_id)
        if record is None:
            raise JournalError(f"the journal holds nothing of request {output.request_id}")
        self._journal.forget(record)
        return checked_answer(record, list(text.token_ids))
