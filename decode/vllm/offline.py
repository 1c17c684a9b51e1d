"""vLLM's LLM for a pair, and the Decoder that draws by it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind

from ..decoder import Decoder
from ..engine.paired_batch import PairedBatch
from ..engine.request import Request, RequestState, refused
from ..serving.journal_reader import LOOK_S, NUM_KEPT, WAIT_S, JournalError, JournalReader, Record
from ..settings import SamplingConfig
from .admission import parameters
from .settings import ONE_PROMPT, DescribedPair, EngineSettings, PairRule


class PairLLM(LLM):
    """An LLM whose results carry `.anchored`; none is returned that the journal does not hold.

    A request asks by `SamplingParams(extra_args={"anchored_k": 1.0, "anchored_seed": 7})`, or
    anchored_K, anchored_divergence, anchored_bank, anchored_debt. `.anchored` holds what an
    answer of the server says of a text. What cannot be honored within the bound is a ValueError.
    """

    def __init__(self, settings: EngineSettings, **engine: Any) -> None:
        self.settings = settings
        # Before the engine begins its file: what is there is of engines before it.
        self._journal = JournalReader(settings.journal, skips_written=True, num_kept=NUM_KEPT)
        super().__init__(**engine)
        self._late: list[Any] = []
        """Results whose steps the journal does not hold yet."""
        self._ended: dict[str, Record] = {}
        """Records that `records` is to yield."""
        self._awaited: set[str] = set()
        self._plain_step = self.llm_engine.step
        self.llm_engine.step = self._step

    def records(
        self, prompts: Sequence[list[int]], params: Sequence[SamplingParams]
    ) -> Iterator[tuple[int, Record]]:
        """The index and the record of each text, once it has ended and the journal holds it.

        What was not taken when the iterator is dropped is aborted.
        """
        engine, index = self.llm_engine, {}
        try:
            for i, (prompt, asked) in enumerate(zip(prompts, params, strict=True)):
                name = str(next(self.request_counter))
                index[name] = i
                self._awaited.add(name)
                engine.add_request(name, {"prompt_token_ids": prompt}, asked)
            while index:
                if engine.has_unfinished_requests():
                    engine.step()
                else:
                    self._await_late()
                for name in [name for name in index if name in self._ended]:
                    yield index.pop(name), self._ended.pop(name)
        finally:
            engine.abort_request(list(index))
            self._awaited.clear()
            self._ended.clear()

    def _run_engine(self, *args: Any, **kwargs: Any) -> Any:
        """The results of `generate` and of `chat`, once the journal holds the last of them."""
        outputs = super()._run_engine(*args, **kwargs)
        self._await_late()
        return outputs

    def _step(self) -> list[Any]:
        """Results are compared with their records as they end: a call of a million holds few."""
        outputs: list[Any] = self._plain_step()
        self._late += [output for output in outputs if output.finished]
        self._answer_late()
        return outputs

    def _await_late(self) -> None:
        until = time.monotonic() + WAIT_S
        while self._late and time.monotonic() < until:
            time.sleep(LOOK_S)
            self._answer_late()
        late, self._late = self._late, []
        for output in late:
            self._answer(output)

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
        name = output.request_id
        output.anchored = self._journal.answer(name, list(text.token_ids))
        if name in self._awaited:
            if (record := self._journal.find(name)) is None:
                raise JournalError(f"the journal holds nothing of request {name}")
            self._ended[name] = record
        self._journal.forget(name)


class PairDecoder(Decoder):
    """A `Decoder` whose steps are vLLM's: `generate` and `generate_each` are the same calls."""

    def __init__(self, llm: PairLLM, pair: DescribedPair, rule: PairRule) -> None:
        super().__init__(pair, rule, level="token")
        self.llm = llm
        """vLLM's LLM of the pair, for calls in its words."""
        pair.computes_in(llm.model_config.dtype)
        self.level.context_length = llm.model_config.max_model_len

    def score(self, *_: Any, **__: Any) -> Any:
        """Raises ValueError: only a `Decoder` with the weights scores."""
        raise ValueError(f"score: {NOT_IN_VLLM}")

    def prompt_ratios(self, *_: Any, **__: Any) -> Any:
        """Raises ValueError: only a `Decoder` with the weights measures ratios."""
        raise ValueError(f"prompt_ratios: {NOT_IN_VLLM}")

    def _open(self, *_: Any) -> PairedBatch:
        raise ValueError(f"stream: {NOT_IN_VLLM}")

    def _requests(self, *args: Any, **options: Any) -> list[Request]:
        requests = super()._requests(*args, **options)
        if requests and all(request.stream_prompts for request in requests):
            raise ValueError(ONE_PROMPT)
        return [
            replace(request, error=request.error or ONE_PROMPT)
            if request.stream_prompts
            else request
            for request in requests
        ]

    def _decode(
        self, requests: list[Request], config: SamplingConfig, begun: dict[int, RequestState]
    ) -> Iterator[RequestState]:
        """Every request as it ends; vLLM batches those of a call as it can.

        begun: takes none, as the journal has what was drawn of each.
        """
        for request in requests:
            if request.error:
                yield refused(request, self.rule, self.level.text_stream())
        fitting = [request for request in requests if not request.error]
        prompts = [request.prompt_token_ids for request in fitting]
        params = [self._params(request, config) for request in fitting]
        for i, record in self.llm.records(prompts, params):
            yield self._state(fitting[i], record)

    def _params(self, request: Request, config: SamplingConfig) -> SamplingParams:
        return parameters(
            request,
            self.rule,
            config,
            stop=[text for text in request.stop if not self.level.stop_symbols([text])],
            stop_token_ids=sorted(self.level.stop_symbols(request.stop)),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _state(self, request: Request, record: Record) -> RequestState:
        """The request as a batch of a `Decoder` would leave it, by the tokens of the journal."""
        budget = self.rule.budget_for(horizon=request.max_new_tokens, k=request.k)
        budget = replace(budget, debt=record.header.debt)
        text = self.level.text_stream(request.stop, request.prompt_token_ids)
        state = RequestState(request=request, budget=budget, text=text)
        for step in record.drawn:
            if state.is_finished:
                break  # the engine may have drawn on after a stop string
            state.append(step, is_end=step.token_id in self.level.stop_token_ids)
        if not state.is_finished:
            state.fail(record.error or "vLLM ended the text before its length")
        state.num_forwards.update(safe=len(state.steps), risky=len(state.steps))
        return state


NOT_IN_VLLM = "a pair inside vLLM has `generate` and `generate_each` alone; load it as a ModelPair"
