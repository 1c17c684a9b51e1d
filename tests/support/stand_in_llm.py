"""A stand-in for vLLM's engine, where vLLM is not installed: it draws by a `Decoder`."""

import asyncio
from collections.abc import AsyncIterator, Callable
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
from anchored.decode.serving.journal import JournalWriter
from anchored.decode.serving.journal_reader import JournalReader
from anchored.decode.serving.metrics import Metrics
from anchored.decode.settings import SamplingConfig
from anchored.decode.vllm.async_engine import AsyncEngine

ADDED = "-abcdefgh"
"""vLLM's engine adds eight letters to each id."""


@dataclass
class StandIn:
    """The methods of an AsyncLLM that the server calls; one thread draws, as one process does."""

    decoder: Decoder
    journal: JournalWriter

    def __post_init__(self) -> None:
        self.worker, self.errored = ThreadPoolExecutor(1), False
        self.gate: Callable[[], None] = lambda: None
        """Runs before each step."""

    async def generate(self, prompt: Any, job: Job, request_id: str) -> AsyncIterator[Any]:
        assert prompt["prompt_token_ids"] == job.request.prompt_token_ids
        within, name = asyncio.get_running_loop().run_in_executor, request_id + ADDED
        request = replace(job.request, stop=())  # stops are looked for by the server
        batch, state = await within(self.worker, self._begin, request)
        while not state.is_finished:
            first = len(state.steps)
            new = await within(self.worker, self._step, name, job, batch, state)
            drawn = SimpleNamespace(token_ids=new, logprobs=_ranked(state.log_probs[first:]))
            prompt = scored_prompt(self.decoder, request) if request.echoes else []
            yield SimpleNamespace(outputs=[drawn], prompt_logprobs=[None, *_ranked(prompt)])

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

    def _step(self, name: str, job: Job, batch: Any, state: Any) -> list[int]:
        self.gate()
        first = len(state.steps)
        with plain_torch():
            batch.step()
        try:
            self._write(name, job, state, first)
        except OSError:  # the text ends, and the journal does not hold why
            state.fail("the journal cannot be written")
        return [step.token_id for step in state.steps[first:]]

    def _write(self, name: str, job: Job, state: Any, first: int) -> None:
        request = job.request
        rule = request.rule or self.decoder.open_rule
        sampling = request.sampling or SamplingConfig()
        if first == 0:
            header = ledger_header(self.decoder.level, rule, sampling, state)
            self.journal.open(name, header, has_stops=bool(request.stop), client_id=job.client_id)
        self.journal.steps([(name, step) for step in state.steps[first:]])
        if state.error:
            self.journal.fail(name, state.error)


def _ranked(places: list[TokenLogProbs]) -> list[dict[int, Any]]:
    """As vLLM tells log-probabilities: by token, with ranks."""
    ranked = []
    for place in places:
        # The drawn token is there too: of other ranks it has the one that comes next.
        rank = len(place.top) + 1
        entries = {place.token_id: SimpleNamespace(logprob=place.log_prob, rank=rank)}
        for rank, (token_id, log_prob) in enumerate(place.top, start=1):
            entries[token_id] = SimpleNamespace(logprob=log_prob, rank=rank)
        ranked.append(entries)
    return ranked


class StandInEngine(AsyncEngine):
    """The engine of vLLM, whose steps tests may hold as those of a batch."""

    llm: StandIn

    def _step(self) -> None:
        """Before each step."""


def stand_in_engine(
    decoder: Decoder, journal: Path, *, max_length: int | None, max_waiting: int
) -> AsyncEngine:
    writer = JournalWriter(journal)
    llm = StandIn(decoder, writer)
    if max_length is not None:
        decoder.level.context_length = max_length
    engine = StandInEngine(
        decoder,
        JournalReader(journal, skips_written=False),
        lambda: llm,
        lambda job: job,
        Metrics(),
        max_waiting=max_waiting,
    )
    llm.gate = lambda: engine._step()
    return engine
