"""A replacement of vLLM's engine, where vLLM is not installed: it draws by a `Decoder`."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from anchored import Decoder
from anchored.decode.ambient import plain_torch
from anchored.decode.engine.log_probs import TokenLogProbs
from anchored.decode.generation import ledger_header
from anchored.decode.serving.batch_thread import scored_prompt
from anchored.decode.serving.engine import Job
from anchored.decode.serving.gauges import Metrics
from anchored.decode.serving.journal import JournalWriter
from anchored.decode.settings import SamplingConfig
from anchored.decode.vllm.async_engine import AsyncEngine


@dataclass
class ReplacedLLM:
    """The methods of an AsyncLLM that the server calls; one thread draws, as one process does."""

    decoder: Decoder
    journal: JournalWriter

    def __post_init__(self) -> None:
        self.worker, self.errored = ThreadPoolExecutor(1), False

    async def generate(self, prompt: Any, job: Job, request_id: str) -> AsyncIterator[Any]:
        assert prompt["prompt_token_ids"] == job.request.prompt_token_ids
        within = asyncio.get_running_loop().run_in_executor
        request = replace(job.request, stop=())  # stops are looked for by the server
        batch, state = await within(self.worker, self._begin, request)
        scored = scored_prompt(self.decoder, request) if request.echoes else []
        of_prompt = [None, *_ranked(scored)]
        while not state.is_finished:
            first = len(state.steps)
            new = await within(self.worker, self._step, job, batch, state)
            drawn = SimpleNamespace(token_ids=new, logprobs=_ranked(state.log_probs[first:]))
            yield SimpleNamespace(outputs=[drawn], prompt_logprobs=of_prompt)

    async def check_health(self) -> None:
        if self.errored:
            raise RuntimeError("the engine is dead")

    async def collective_rpc(self, method: str) -> list[bool]:
        assert method in ("anchored_served", "anchored_noted", "anchored_written")
        within = asyncio.get_running_loop().run_in_executor
        # What was begun before has ended.
        return [await within(self.worker, lambda: method != "anchored_noted" and self._writes())]

    def shutdown(self) -> None:
        self.worker.shutdown()
        self.journal.close()

    def _writes(self) -> bool:
        try:
            self.journal.try_again()
        except OSError:
            return False
        return True

    def _begin(self, request: Any) -> Any:
        with plain_torch():
            batch = self.decoder.open_batch(1, request.max_length, SamplingConfig())
            (state,) = batch.admit([request])
        return batch, state

    def _step(self, job: Job, batch: Any, state: Any) -> list[int]:
        first = len(state.steps)
        with plain_torch():
            batch.step()
        try:
            self._write(job, state, first)
        except OSError:  # the text ends, and the journal does not hold why
            state.fail("the journal cannot be written")
        return [step.token_id for step in state.steps[first:]]

    def _write(self, job: Job, state: Any, first: int) -> None:
        request, name = job.request, job.request_id
        rule = request.rule or self.decoder.open_rule
        sampling = request.sampling or SamplingConfig()
        if first == 0:
            header = ledger_header(self.decoder.level, rule, sampling, state)
            self.journal.open(name, header, has_stops=bool(request.stop), client_id=job.client_id)
        self.journal.steps([(name, step) for step in state.steps[first:]])
        if state.error:
            self.journal.fail(name, state.error)


def _ranked(places: list[TokenLogProbs]) -> list[dict[int, Any]]:
    """As vLLM tells log-probabilities: by token, with ranks, the drawn token after the others."""
    ranked = []
    for place in places:
        told = list(enumerate((*place.top, (place.token_id, place.log_prob)), start=1))
        entries = {t: SimpleNamespace(logprob=value, rank=rank) for rank, (t, value) in told[::-1]}
        ranked.append(entries)
    return ranked


def replaced_engine(
    decoder: Decoder,
    journal: Path,
    *,
    max_length: int | None,
    max_waiting: int,
    written: Path | None = None,
) -> AsyncEngine:
    """written: the folder in which the engine writes, where it is another one."""
    if max_length is not None:
        decoder.level.context_length = max_length
    return AsyncEngine(
        decoder,
        journal,
        lambda: ReplacedLLM(decoder, JournalWriter(written or journal)),
        lambda job: job,
        Metrics(),
        max_waiting=max_waiting,
    )
