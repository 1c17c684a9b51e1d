"""The page /metrics that a server's operator reads: requests, texts, nats and steps."""

import math
import time
from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..ledger import LedgerStep
from .engine import Job, Update

NATS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
"""Edges of histograms of debts; +inf is of prompts that the safe model never writes."""

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Edges of histograms of waits, from a step of a GPU to a long queue."""


class Metrics:
    """Series of a server: requests, and the texts that were drawn for them; a symbol is a token, or
    a byte. No label names a client, and none takes more than a few values."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """registry: of an engine that has series too; one of these alone for None."""
        self._registry = CollectorRegistry() if registry is None else registry
        named: dict[str, Any] = {"namespace": "anchored", "registry": self._registry}

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(name, help_text, labels, **named)

        def histogram(name: str, help_text: str, edges: Sequence[float]) -> Histogram:
            return Histogram(name, help_text, buckets=edges, **named)

        self.requests = counter("requests", "HTTP requests that were answered", "path", "status")
        self.refusals = counter("refused_requests", "Requests that were not drawn for", "reason")
        self._texts = counter("texts", "Texts that have ended", "finish_reason")
        self._uncertified = counter("uncertified_texts", "Texts that ended without a certificate")
        self._unwritten = counter("unwritten_texts", "Texts that the journal could not take")
        self._prompt_symbols = counter("prompt_symbols", "Symbols of prompts")
        self._symbols = counter("symbols", "Symbols that were drawn")
        self._safe_only = counter("safe_only_symbols", "Symbols of steps that could spend nothing")
        self._spent = counter("spent_nats", "Nats that tokens have cost")
        self._returned = counter("returned_nats", "Nats that drawn tokens gave back")
        self._bound = counter("bound_nats", "Bounds of texts that have ended")
        self._debts = histogram("debt_nats", "Debts of prompts", NATS)
        self._first = histogram("first_symbol_seconds", "From the queue to a first symbol", SECONDS)
        self._steps = histogram("step_seconds", "Steps of the batch", SECONDS)
        self.waiting = Gauge("waiting_texts", "Texts without a row", **named)
        self.running = Gauge("running_texts", "Texts that are decoded", **named)
        self.fallback = Gauge("solver_fallback", "1 where the CPU's solver draws", **named)

    def page(self) -> bytes:
        """All series, in the text format of Prometheus."""
        return bytes(generate_latest(self._registry))

    def joined(self, jobs: Sequence[Job]) -> None:
        """Jobs whose prompts were read."""
        for job in jobs:
            if job.is_recorded and job.state is not None:
                self._prompt_symbols.inc(len(job.request.prompt_token_ids))
                self._debts.observe(job.state.budget.debt)

    def stepped(self, seconds: float) -> None:
        """A step of the batch."""
        self._steps.observe(seconds)

    def reported(self, updates: Sequence[tuple[Job, Update]]) -> None:
        """Count the updates of some jobs, which are in the journal."""
        steps: list[LedgerStep] = []
        for job, update in updates:
            if not job.is_recorded:
                continue
            assert job.state is not None
            count = len(update.token_ids)
            steps += job.state.steps[job.num_reported - count : job.num_reported]
            if count and count == job.num_reported:
                self._first.observe(time.monotonic() - job.queued_s)
            if update.ledger is not None:
                ledger = update.ledger
                self._texts.labels(ledger.finish_reason).inc()
                self._uncertified.inc(not ledger.certified)
                if math.isfinite(ledger.header.bound):
                    self._bound.inc(ledger.header.bound)
            elif update.is_last:
                self._unwritten.inc()
                self._texts.labels("error").inc()
        self._symbols.inc(len(steps))
        self._safe_only.inc(sum(step.budget <= 0.0 for step in steps))
        spends = [step.spend for step in steps if math.isfinite(step.spend)]
        self._spent.inc(math.fsum(max(0.0, spend) for spend in spends))
        self._returned.inc(math.fsum(max(0.0, -spend) for spend in spends))

    def broken_off(self, job: Job) -> None:
        """A text that is not decoded to its end."""
        if job.is_recorded:
            self._texts.labels("aborted").inc()
