"""From the states of a batch to lines of the journal, and to what clients hear."""

import logging
from collections.abc import Sequence
from typing import Final

from ..decoder import Decoder
from ..generation import ledger_header, request_ledger
from ..ledger import Ledger, LedgerStep
from ..rules.rule import OpenRule
from ..settings import SamplingConfig
from .engine import Job, Refused, Update
from .journal import JournalWriter

logger = logging.getLogger(__name__)

UNWRITTEN: Final = Refused(503, "the journal cannot be written", may_pass=False)


class Recording:
    """Writes what is drawn for jobs: what it returns as updates, the journal holds."""

    def __init__(self, decoder: Decoder, journal: JournalWriter | None) -> None:
        """journal: None where another process writes it, before it says what it has drawn."""
        self._decoder, self._journal = decoder, journal

    def updates(self, jobs: Sequence[Job]) -> list[tuple[Job, Update]]:
        """What is new of some jobs, once it is in the journal.

        Where that cannot be written, none of them hears of it: that is the last update of each.
        """
        news = [(job, update) for job in jobs if (update := self._update(job)) is not None]
        try:
            if self._journal is not None:
                self._write(self._journal, [(j, update) for j, update in news if j.is_recorded])
        except OSError as error:
            logger.error("%s: %s", UNWRITTEN, error)
            for job, _ in news:
                job.is_unwritten = self._journal is None or self._journal.is_torn
            return [(job, Update(refused=UNWRITTEN)) for job, _ in news]
        for job, update in news:
            job.num_reported += len(update.token_ids)
        return news

    def break_off(self, job: Job) -> None:
        """A job that is not decoded to its end: the journal says so, if it has begun."""
        if self._journal is None or not job.journal_id:
            return
        try:
            self._journal.end(job.request_id, self._ledger(job))
        except OSError as error:  # what the journal holds of it is all that was sent
            logger.error("%s: %s", UNWRITTEN, error)

    def _update(self, job: Job) -> Update | None:
        """None where nothing is new."""
        state = job.state
        assert state is not None, "a job in the queue has no news"
        steps, texts = state.steps[job.num_reported :], state.texts[job.num_reported :]
        if not (steps or state.is_finished):
            return None
        return Update(
            text="".join(texts),
            token_ids=[step.token_id for step in steps],
            log_probs=state.log_probs[job.num_reported : len(state.steps)],
            prompt_log_probs=() if job.num_reported else state.prompt_log_probs,
            ledger=self._ledger(job) if state.is_finished else None,
            error=state.error,
        )

    def _write(self, journal: JournalWriter, news: Sequence[tuple[Job, Update]]) -> None:
        rows: list[tuple[str, LedgerStep]] = []
        for job, _ in news:
            self._open(journal, job)
            assert job.state is not None
            rows += [(job.request_id, step) for step in job.state.steps[job.num_reported :]]
        journal.steps(rows)
        for job, update in news:
            if update.error:
                journal.fail(job.request_id, update.error)
            if update.ledger is not None:
                journal.end(job.request_id, update.ledger)

    def _open(self, journal: JournalWriter, job: Job) -> None:
        if job.journal_id:
            return
        rule, sampling = self._way(job)
        assert job.state is not None
        journal.open(
            job.request_id,
            ledger_header(self._decoder.level, rule, sampling, job.state),
            has_stops=bool(job.request.stop),
            is_certified=rule.is_certified,
            client_id=job.client_id,
        )
        job.journal_id = job.request_id

    def _ledger(self, job: Job) -> Ledger:
        rule, sampling = self._way(job)
        assert job.state is not None
        return request_ledger(self._decoder.level, rule, sampling, job.state)

    def _way(self, job: Job) -> tuple[OpenRule, SamplingConfig]:
        request = job.request
        return request.rule or self._decoder.open_rule, request.sampling or SamplingConfig()
