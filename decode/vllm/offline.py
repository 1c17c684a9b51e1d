"""vLLM's LLM for a pair: each result says what it spent."""

from __future__ import annotations

import time
from typing import Any

from vllm import LLM

from .journal import LOOK_S, NUM_KEPT, WAIT_S, JournalError, JournalReader
from .settings import EngineSettings


class PairLLM(LLM):
    """An LLM whose results carry `.anchored`; none is returned that the journal does not hold."""

    def __init__(self, settings: EngineSettings, **engine: Any) -> None:
        self.settings = settings
        super().__init__(**engine)
        self._journal = JournalReader(settings.journal, skips_written=True, num_kept=NUM_KEPT)
        self._late: list[Any] = []
        """Results whose steps the journal does not hold yet."""
        self._plain_step = self.llm_engine.step
        self.llm_engine.step = self._step

    def _run_engine(self, *args: Any, **kwargs: Any) -> Any:
        """Of both `generate` and `chat`: the results, once the journal holds the last of them."""
        outputs = super()._run_engine(*args, **kwargs)
        until = time.monotonic() + WAIT_S
        while self._late and time.monotonic() < until:
            time.sleep(LOOK_S)
            self._answer_late()
        late, self._late = self._late, []
        for output in late:
            self._answer(output)
        return outputs

    def _step(self) -> list[Any]:
        """Results are compared with their records as they end: a call of a million holds few."""
        outputs: list[Any] = self._plain_step()
        self._late += [output for output in outputs if output.finished]
        self._answer_late()
        return outputs

    def _answer_late(self) -> None:
        waiting, self._late = self._late, []
        for output in waiting:
            try:
                self._answer(output)
            except JournalError:
                self._late.append(output)

    def _answer(self, output: Any) -> None:
        """Raises JournalError where the journal does not hold the tokens."""
        (text,) = output.outputs
        output.anchored = self._journal.answer(output.request_id, list(text.token_ids))
        self._journal.forget(output.request_id)
