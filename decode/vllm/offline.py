"""vLLM's LLM for a pair, and the Decoder that draws by it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind

from ..decoder import Decoder
from ..engine.paired_batch import PairedBatch
from ..engine.request import Request, RequestState, refused
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
from .pair_description import ONE_PROMPT, DescribedPair, EngineSettings, PairRule


class PairLLM(LLM):
    """An LLM that yields the records of texts, once the journal holds them."""

    def __init__(self, settings: EngineSettings, **engine: Any) -> None:
        self._num_drawn: dict[str, int | None] = {}
        """Tokens of texts that have not been yielded, by name; None of one that has not ended."""
        # Before the engine begins its file: what is there is of engines before it.
        folder, names = settings.journal, journal_names(settings.journal)
        self._journal = JournalReader(folder, skipped=names, only=self._num_drawn.keys())
        super().__init__(**engine)

    def records(
        self, prompts: Mapping[str, list[int]], params: Mapping[str, SamplingParams]
    ) -> Iterator[Record]:
        """The record of each text, by whose name `params` are made, once it has ended.

        What was not taken when the iterator is dropped is aborted. Raises JournalError where the
        journal does not come to hold a text.
        """
        engine, until_s = self.llm_engine, time.monotonic() + WAIT_S
        self._num_drawn |= dict.fromkeys(prompts)
        try:
            for name, prompt in prompts.items():
                engine.add_request(name, {"prompt_token_ids": prompt}, params[name])
            while waiting := [name for name in prompts if name in self._num_drawn]:
                # 1. A step; after the last one, a look at a journal that is late.
                if engine.has_unfinished_requests():
                    for output in engine.step():
                        if output.finished and output.request_id in self._num_drawn:
                            (text,) = output.outputs
                            self._num_drawn[output.request_id] = len(text.token_ids)
                    until_s = time.monotonic() + WAIT_S
                elif time.monotonic() > until_s:
                    raise JournalError(f"the journal lacks tokens of {waiting[0]}")
                else:
                    time.sleep(LOOK_S)
                # 2. The texts that have ended, whose tokens the journal has.
                self._journal.refresh()
                for name in waiting:
                    count = self._num_drawn[name]
                    record = None if count is None else self._journal.holding(name, count)
                    if record is not None:
                        self._forget(name)
                        yield record
        finally:
            left = [name for name in prompts if name in self._num_drawn]
            engine.abort_request(left)
            for name in left:
                self._forget(name)

    def _forget(self, name: str) -> None:
        del self._num_drawn[name]
        self._journal.forget(name)


class PairDecoder(Decoder):
    """A `Decoder` whose steps are vLLM's: `generate` and `generate_each` are the same calls."""

    def __init__(self, llm: PairLLM, pair: DescribedPair, rule: PairRule) -> None:
        super().__init__(pair, rule, level="token")
        self.llm = llm
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
        fitting = {f"text-{uuid.uuid4().hex}": each for each in requests if not each.error}
        prompts = {name: request.prompt_token_ids for name, request in fitting.items()}
        params = {name: self._params(name, each, config) for name, each in fitting.items()}
        for record in self.llm.records(prompts, params):
            yield self._state(fitting[record.request_id], record)

    def _params(self, name: str, request: Request, config: SamplingConfig) -> SamplingParams:
        return parameters(
            request,
            self.rule,
            config,
            name=name,
            stop=[text for text in request.stop if not self.level.stop_symbols([text])],
            stop_token_ids=sorted(self.level.stop_symbols(request.stop)),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _state(self, request: Request, record: Record) -> RequestState:
        """The request as a batch of a `Decoder` would leave it, by the tokens of the journal."""
        state = begun(self, request)
        follow(state, record, record.num_drawn, self.level.stop_token_ids)
        if not state.is_finished:
            state.fail("vLLM ended the text before its length")
        state.num_forwards.update(safe=len(state.steps), risky=len(state.steps))
        return state


NOT_IN_VLLM = "a pair inside vLLM has `generate` and `generate_each` alone; load it as a ModelPair"
