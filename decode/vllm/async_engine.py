"""vLLM as the engine of the server: jobs go in, and updates come out once the journal has them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...errors import AnchoredError
from ..decoder import Decoder
from ..engine.log_probs import TokenLogProbs
from ..engine.request import RequestState
from ..serving.engine import BROKEN, SHUT_DOWN, Job, Refused, Update
from ..serving.gauges import Metrics
from ..serving.journal import UNWRITTEN, Recording
from ..serving.journal_reader import (
    LOOK_S,
    WAIT_S,
    JournalError,
    JournalReader,
    Record,
    journal_names,
)
from ..settings import SamplingConfig
from .admission import begun, follow, parameters
from .engine import WORKER, engine_arguments, register
from .pair_description import ONE_PROMPT, DescribedPair, EngineSettings, PairRule

if TYPE_CHECKING:
    from vllm import AsyncLLMEngine, SamplingParams

logger = logging.getLogger(__name__)

# One job is one request of vLLM's engine. In order:
#
#   1. The engine draws tokens in its processes, whose first one writes the journal.
#   2. For each output the journal is read until it holds as many steps. They, and no tokens of the
#      output, make the job's state: its text, its end, its ledger, as in a batch of a `Decoder`.
#   3. The state is told as an update. A stop string ends the engine's text too.
#   4. At the end the engine says that the journal holds all that it drew: that is what it cost.


class AsyncEngine:
    """The engine that draws jobs by vLLM: see `Engine`."""

    def __init__(
        self,
        decoder: Decoder,
        journal: Path | str,
        open_llm: Callable[[], AsyncLLMEngine],
        params_of: Callable[[Job], Any],
        metrics: Metrics,
        *,
        max_waiting: int,
    ) -> None:
        """decoder: of a pair without weights; its batch_size is the engine's number of rows, its
        level's context the engine's length. journal: the folder in which the engine is to write.
        open_llm: starts vLLM, in the server's loop. params_of: a job's SamplingParams.
        max_waiting: jobs beyond the rows."""
        self.decoder, self.metrics = decoder, metrics
        self.max_length = cast(int, decoder.level.context_length)
        self.max_waiting = max_waiting
        self.failure: BaseException | None = None
        self.refusal: Refused | None = None
        self._open_llm, self._params_of = open_llm, params_of
        self._recording = Recording(decoder, journal=None)
        self._llm: AsyncLLMEngine | None = None
        self._on_failure: Callable[[], None] = lambda: None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """The tasks of all jobs that are not settled, by their names."""
        self._reader = JournalReader(
            journal, skipped=journal_names(journal), only=self._tasks.keys()
        )
        self._drawing: set[Job] = set()
        self._broken_off: dict[Job, Refused | None] = {}
        """Those that are drawn no further, and what their last updates say."""
        self._is_unwritten = False
        """The journal has not come to hold what was drawn."""
        self._look: asyncio.Future[None] | None = None
        """The look into the journal for which all late jobs wait."""

    async def start(self, on_failure: Callable[[], None]) -> None:
        """Raises AnchoredError for a journal that is not read here."""
        self._on_failure = on_failure
        self._llm = self._open_llm()
        await self._llm.collective_rpc("anchored_served")
        await self._noted()
        if not self._reader.refresh():
            raise AnchoredError("the engine's first process and the server need one file system")

    @property
    def num_running(self) -> int:
        return min(len(self._tasks), self.decoder.batch_size)

    @property
    def num_waiting(self) -> int:
        return len(self._tasks) - self.num_running

    def check(self, jobs: Sequence[Job]) -> None:
        if self.refusal is not None:
            raise self.refusal
        if self._is_unwritten:
            self._retry = asyncio.ensure_future(self._try_again())  # a later request may pass
            raise UNWRITTEN.with_traceback(None)
        if any(job.request.stream_prompts for job in jobs):
            raise ValueError(ONE_PROMPT)
        if len(self._tasks) + len(jobs) > self.max_waiting + self.decoder.batch_size:
            raise Refused(429, f"{self.num_waiting} texts wait already: try again later")

    def submit(self, jobs: Sequence[Job]) -> None:
        self.check(jobs)
        self._drawing.update(jobs)
        for job in jobs:
            self._tasks[job.request_id] = asyncio.create_task(self._run(job))

    def cancel(self, jobs: Sequence[Job], refused: Refused | None = None) -> None:
        for job in jobs:
            if job in self._drawing and job not in self._broken_off:
                self._broken_off[job] = refused
                if job.state is not None:  # else its task has not begun, and looks by itself
                    self._tasks[job.request_id].cancel()

    def refuse_new(self, refused: Refused) -> None:
        self.refusal = self.refusal or refused

    async def stop(self) -> None:
        self.refuse_new(Refused(503, SHUT_DOWN))
        self.cancel(list(self._drawing), self.refusal)
        await asyncio.gather(*self._tasks.values())
        if self._llm is not None:
            self._llm.shutdown()
            self._llm = None

    async def probe(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        assert self._llm is not None, "the engine has started"
        await self._llm.check_health()
        if not await self._try_again():
            raise UNWRITTEN.with_traceback(None)

    async def _try_again(self) -> bool:
        """Whether the engine can write its journal, where it could not."""
        if self._is_unwritten and self._llm is not None:
            self._is_unwritten = not all(await self._llm.collective_rpc("anchored_written"))
        return not self._is_unwritten

    async def falls_back(self) -> bool:
        return self._llm is not None and any(await self._noted())

    async def _noted(self) -> list[bool]:
        """The engine's promise that the journal holds all that was drawn, and whether the CPU's
        solver draws in each of its processes."""
        assert self._llm is not None, "the engine has started"
        return list(await self._llm.collective_rpc("anchored_noted"))

    async def _run(self, job: Job) -> None:
        """Draw one job to its end, in the steps above."""
        state = job.state = begun(self.decoder, job.request)
        try:
            if job not in self._broken_off:
                await self._draw(job, state)
        except asyncio.CancelledError:
            pass  # it was broken off
        except Exception as error:
            self._fail(job, error)
        self._drawing.remove(job)
        await self._settle(job)
        del self._tasks[job.request_id]
        if job in self._broken_off:
            self.metrics.broken_off(job)
            if (refused := self._broken_off.pop(job)) is not None:
                job.updates.put_nowait((job, Update(refused=refused)))
        else:
            self._tell(job)

    async def _draw(self, job: Job, state: RequestState) -> None:
        assert self._llm is not None, "the engine has started"
        prompt: Any = {"prompt_token_ids": job.request.prompt_token_ids}
        outputs = self._llm.generate(prompt, self._params_of(job), job.request_id)
        ends = () if job.request.ignores_ends else self.decoder.level.stop_token_ids
        num_drawn = 0
        async with aclosing(outputs):  # the engine stops where we do
            async for output in outputs:
                # 1. The engine has drawn some tokens, and its journal has them, or has them soon.
                (drawn,) = output.outputs
                num_drawn += len(drawn.token_ids)
                num_top = job.request.num_top or 0
                state.log_probs += _log_probs(drawn.token_ids, drawn.logprobs or (), num_top)
                if job.request.echoes and not state.prompt_log_probs:
                    rest = job.request.prompt_token_ids[1:]
                    of_prompt = output.prompt_logprobs[1:]
                    state.prompt_log_probs = _log_probs(rest, of_prompt, num_top)
                record = await self._record(job.request_id, num_drawn)
                # 2. The steps of the journal become the state, as a batch would have it.
                is_first = not state.steps
                follow(state, record, num_drawn, ends)
                if is_first:
                    self.metrics.joined([job])
                # 3. Clients hear of it; of the end once it is settled.
                if state.is_finished:
                    return
                self._tell(job)
        state.fail("the engine ended the text before its length")

    async def _settle(self, job: Job) -> None:
        """4. Charge what the journal holds, once nothing more of the text can come into it."""
        record = self._reader.find(job.request_id)
        try:
            if job.settle is not None and (record is None or not record.is_whole):
                await self._noted()
                self._reader.refresh()
                record = self._reader.find(job.request_id)
            job.settled(0.0 if record is None else record.spent)
        except Exception as error:  # the engine has ended: the next server reads the journal
            logger.error("%s is not settled: %s", job.request_id, error)
        self._reader.forget(job.request_id)

    def _fail(self, job: Job, error: Exception) -> None:
        refused = Refused(500, f"{BROKEN}: {error}")
        logger.error("%s: %s", job.request_id, refused, exc_info=error)
        self._broken_off[job] = refused
        if isinstance(error, JournalError):
            self._broken_off[job], self._is_unwritten = UNWRITTEN, True
        if self._llm is not None and self._llm.errored and self.failure is None:
            self.failure, self.refusal = error, refused
            self._on_failure()

    def _tell(self, job: Job) -> None:
        updates = self._recording.updates([job])
        self.metrics.reported(updates)
        for update in updates:
            job.updates.put_nowait(update)

    async def _record(self, name: str, num_drawn: int) -> Record:
        """The record of a text, once the journal has so many of its steps; JournalError where it
        does not have them within WAIT_S."""
        until_s = time.monotonic() + WAIT_S
        while (record := self._reader.holding(name, num_drawn)) is None:
            if time.monotonic() > until_s:
                raise JournalError(f"the journal lacks tokens of {name} after {WAIT_S:g} s")
            if not self._reader.refresh():  # one look for all jobs that wait
                if self._look is None or self._look.done():
                    self._look = asyncio.ensure_future(asyncio.sleep(LOOK_S))
                await asyncio.shield(self._look)  # a job that is broken off ends its wait only
        return record


def _log_probs(
    token_ids: Sequence[int], places: Sequence[Mapping[int, Any]], num_top: int
) -> list[TokenLogProbs]:
    """vLLM's log-probabilities of some tokens; none where it was not asked for them."""
    made = []
    for token_id, place in zip(token_ids, places, strict=False):
        ranked = sorted(place.items(), key=lambda entry: entry[1].rank)
        # The token that was drawn is there too, after these if it is none of them.
        top = [(token, each.logprob) for token, each in ranked[:num_top]]
        made.append(TokenLogProbs(token_id, place[token_id].logprob, top))
    return made


def open_engine(
    settings: EngineSettings,
    pair: DescribedPair,
    rule: PairRule,
    arguments: Mapping[str, Any],
    *,
    max_waiting: int,
) -> AsyncEngine:
    """An engine of vLLM for a pair, which begins to load it as the server starts.

    arguments: vLLM's engine arguments, `tensor_parallel_size` for one. Raises ValueError for one
    that is unknown or cannot go with a pair.
    """
    from prometheus_client import REGISTRY
    from vllm import AsyncEngineArgs, AsyncLLMEngine

    register()
    names = {argument.name for argument in fields(AsyncEngineArgs)}
    if unknown := sorted(arguments.keys() - names):
        raise ValueError(f"vLLM has no engine argument {unknown[0]!r}")
    made = engine_arguments(settings, dict(arguments)) | {"worker_extension_cls": WORKER}
    config = AsyncEngineArgs(**made).create_engine_config()
    num_rows = config.scheduler_config.max_num_seqs
    decoder = Decoder(pair, rule, level="token", batch_size=num_rows)
    pair.computes_in(config.model_config.dtype)
    decoder.level.context_length = config.model_config.max_model_len
    return AsyncEngine(
        decoder,
        settings.journal,
        partial(AsyncLLMEngine.from_vllm_config, config),
        partial(_params_of, decoder),
        Metrics(REGISTRY),  # in which vLLM's series are
        max_waiting=max_waiting,
    )


def _params_of(decoder: Decoder, job: Job) -> SamplingParams:
    from vllm.sampling_params import RequestOutputKind

    request, stops = job.request, decoder.level.stop_symbols(job.request.stop)
    rule, sampling = request.rule or decoder.open_rule, request.sampling or SamplingConfig()
    return parameters(
        request,
        rule.rule,
        sampling,
        name=job.request_id,
        client_id=job.client_id,
        stop_token_ids=sorted(stops),
        logprobs=request.num_top,
        prompt_logprobs=request.num_top if request.echoes else None,
        output_kind=RequestOutputKind.DELTA,
        detokenize=False,
    )
