"""A replacement of vLLM's engine, where vLLM is not installed: it draws by a `Decoder`."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from anchored import Decoder
from anchored.decode.ambient import plain_torch
from anchored.decode.engine.log_probs import TokenLogProbs
from anchored.decode.serving.batch_thread import scored_prompt
from anchored.decode.serving.engine import Job
from anchored.decode.serving.gauges import Metrics
from anchored.decode.serving.journal import JournalWriter, Recording
from anchored.decode.settings import SamplingConfig
from anchored.decode.vllm.async_engine import AsyncEngine


class ReplacedLLM:
    """The methods of an AsyncLLM that the server calls; one thread draws, as one process does."""

    errored = False

    def __init__(self, decoder: Decoder, journal: JournalWriter) -> None:
        self.decoder, self.journal = decoder, journal
        self.recording, self.worker = Recording(decoder, journal), ThreadPoolExecutor(1)

    async def generate(self, prompt: Any, job: Job, request_id: str) -> AsyncIterator[Any]:
        assert prompt["prompt_token_ids"] == job.request.prompt_token_ids
        within = partial(asyncio.get_running_loop().run_in_executor, self.worker)
        request = replace(job.request, stop=())  # stops are looked for by the server
        names = {"request_id": request_id, "client_id": job.client_id}
        drawn = Job(request=request, updates=asyncio.Queue(), **names)
        batch = await within(self._begin, drawn)
        of_prompt = [None, *_ranked(scored_prompt(self.decoder, request) if request.echoes else [])]
        state = drawn.state
        while not state.is_finished:
            first = len(state.steps)
            await within(self._step, drawn, batch)
            token_ids = [step.token_id for step in state.steps[first:]]
            output = SimpleNamespace(token_ids=token_ids, logprobs=_ranked(state.log_probs[first:]))
            yield SimpleNamespace(outputs=[output], prompt_logprobs=of_prompt)

    async def check_health(self) -> None:
        pass

    async def collective_rpc(self, method: str) -> list[bool]:
        assert method in ("anchored_served", "anchored_noted", "anchored_written")
        # What was begun before has ended.
        return [await asyncio.get_running_loop().run_in_executor(self.worker, self._writes)]

    def shutdown(self) -> None:
        self.worker.shutdown()
        self.journal.close()

    def _writes(self) -> bool:
        try:
            self.journal.try_again()
        except OSError:
            return False
        return True

    def _begin(self, job: Job) -> Any:
        with plain_torch():
            batch = self.decoder.open_batch(1, job.request.max_length, SamplingConfig())
            (job.state,) = batch.admit([job.request])
        return batch

    def _step(self, job: Job, batch: Any) -> None:
        with plain_torch():
            batch.step()
        ((_, update),) = self.recording.updates([job])
        if update.refused:  # the text ends, and the journal does not hold why
            job.state.fail("the journal cannot be written")


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
