"""From records on the device to lines of the journal; what the host knows of a request."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..engine.request import ledger_step, random_stream
from ..ledger import LedgerHeader, LedgerStep
from ..serving.journal import UNWRITTEN, JournalWriter
from .admission import SlotRequest
from .pair_description import PairFacts

logger = logging.getLogger(__name__)


class Recorder:
    """Writes what each step drew: in the step on the CPU; by a thread on a device, for which only
    the front end waits, which sends no token that the journal does not hold.

    A request whose lines are not on the disk has an error from then on.
    """

    def __init__(self, journal: JournalWriter | None, facts: PairFacts, dtype: str) -> None:
        """journal: None in all but the first process of a split model. dtype: of both models."""
        self._journal, self._facts, self._dtype = journal, facts, dtype
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._last: Future[None] | None = None

    def keep(self, requests: Sequence[SlotRequest], records: Tensor) -> None:
        """Note the records of a step, (B, G, NUM_FIELDS), of one request each."""
        if records.device.type != "cuda":
            self._note(requests, records)
            return
        copy = torch.empty(records.shape, dtype=records.dtype, pin_memory=True)
        copy.copy_(records, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self._last = self._thread.submit(self._note, list(requests), copy, arrived)

    def try_again(self) -> bool:
        """Whether the journal can be written, where it could not."""
        self.drain()
        try:
            if self._journal is not None:
                self._journal.try_again()
        except OSError:
            return False
        return True

    def forget(self, request: SlotRequest) -> None:
        """A request that was broken off, of which nothing more is drawn."""
        if self._journal is not None and request.is_open and request.name:
            self._thread.submit(self._journal.end, request.name)

    def drain(self) -> None:
        """Wait until all steps are noted."""
        if self._last is not None:
            self._last.result()

    def _note(
        self, requests: Sequence[SlotRequest], records: Tensor, arrived: Any | None = None
    ) -> None:
        """arrived: the event of the copy to the host, to wait for."""
        if arrived is not None:
            arrived.synchronize()
        rows: list[tuple[str, LedgerStep]] = []
        try:
            for request, figures in zip(requests, records.tolist(), strict=True):
                noted = self._noted(request, figures)
                rows += noted if request.name else []
            if self._journal is not None:
                self._journal.steps(rows)
                self._end(self._journal, requests)
        except OSError as error:
            logger.error("%s: %s", UNWRITTEN.reason, error)
            for request in requests:
                request.error = request.error or UNWRITTEN.reason

    def _noted(
        self, request: SlotRequest, records: list[list[float]]
    ) -> list[tuple[str, LedgerStep]]:
        """The steps of a request's rows; its header and its error go before them."""
        noted = []
        for *figures, is_drawn, failed, debt in records:
            if failed and not request.error:
                request.error = f"the logits at step {len(request.steps)} are no distribution"
            if not is_drawn:
                continue
            self._open(request, debt)
            step = ledger_step(len(request.steps), figures)
            noted.append((request.name, step))
            request.steps.append((step.token_id, step.spend))
        if request.error and not request.is_reported:
            self._open(request, records[0][-1])
            if self._journal is not None and request.name:
                self._journal.fail(request.name, request.error)
            request.is_reported = True
        return noted

    def _end(self, journal: JournalWriter, requests: Sequence[SlotRequest]) -> None:
        """Note texts that have their last token."""
        for request in requests:
            if request.name and not request.has_ended and self.has_end(request):
                journal.end(request.name)
                request.has_ended = True

    def has_end(self, request: SlotRequest) -> bool:
        """Whether a request has its last token."""
        if len(request.steps) >= request.horizon:
            return True
        return bool(request.steps) and request.steps[-1][0] in self._ends(request)

    def _ends(self, request: SlotRequest) -> list[int]:
        return [] if request.ignores_ends else self._facts.stop_token_ids

    def _open(self, request: SlotRequest, debt: float) -> None:
        if not request.is_open and request.name and self._journal is not None:
            header = self._header(request, debt)
            self._journal.open(
                request.name,
                header,
                has_stops=request.has_stops,
                client_id=request.client_id,
            )
        request.is_open = True

    def _header(self, request: SlotRequest, debt: float) -> LedgerHeader:
        return LedgerHeader(
            rule=request.rule.name,
            rule_settings=request.rule.settings(),
            sampling=request.sampling.as_dict(),
            seed=request.seed,
            prompt_token_ids=request.prompt,
            stop_token_ids=self._ends(request),
            fingerprints=self._facts.fingerprints,
            dtype=self._dtype,
            **replace(request.budget, debt=debt).record(),
            charge=request.rule.charge,
            quantization=self._facts.quantization,
            level_settings=self._facts.level_settings,
            least_debt=request.least_debt or None,
            stream=random_stream(request.prompt, place=request.sample),
        )
