"""The commands that have a model judge recorded texts."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchored import AnchoredError
from anchored.eval.quality.chat_client import OPENAI_URL
from anchored.eval.recorded_texts import RecordedText
from anchored.eval.retrieval.evidence import SERPER_URL

from ..files import check_input
from .measure import TextOptions

if TYPE_CHECKING:
    from anchored.eval.paid_requests import PaidRequests
    from anchored.eval.quality.chat_client import ChatClient, Sampling
    from anchored.eval.report.tables import Cell
    from anchored.eval.retrieval.evidence import Retriever

Summary = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)  # no slots: others have some, which do not mix
class AskingOptions:
    """How a judge is asked, whichever it is."""

    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable of the key, which nothing records; local endpoints need none."""
    answers: Path | None = None
    """Folder where answers are kept; TEXTS.answers unless given."""
    limit: int | None = None
    """Judge the texts of the first prompts only, so many."""
    concurrency: int = 8
    """Requests at once."""
    attempts: int = 3
    """Answers to the same question that are read until one has the form asked for."""
    max_retries: int = 6
    """Further attempts of a request that had no answer: a limit of its rate, an error of the
    server, a connection that broke."""
    timeout_s: float = 120.0
    """Seconds until a request is given up and made again."""
    judge_seed: int | None = None
    """Sent to the endpoint, for those that draw by it."""
    price_in: float | None = None
    """US dollars for a million tokens of prompts, to show what it costs."""
    price_out: float | None = None
    """US dollars for a million tokens of answers."""

    def __post_init__(self) -> None:
        for name, least in (("concurrency", 1), ("attempts", 1), ("max_retries", 0), ("limit", 1)):
            number = getattr(self, name)
            if number is not None and number < least:
                raise ValueError(f"--{name.replace('_', '-')} must be >= {least}, got {number}")


@dataclass(frozen=True, kw_only=True)  # no slots: others have some, which do not mix
class EvidenceOptions:
    """Where evidence for claims is found."""

    serper: bool = False
    """Search with Google, through serper.dev; the key is in SERPER_API_KEY."""
    corpus: Path | None = None
    """JSON lines, {"text": ..., optional "id"}: passages, found by their words (BM25)."""
    evidence: Path | None = None
    """JSON lines, {"claim": ..., "results": [{"title", "link", "text"}]}."""
    num_results: int = 5
    """Results a claim."""
    serper_url: str = SERPER_URL
    """Where a search is sent."""

    def __post_init__(self) -> None:
        if self.num_evidence > 1:
            raise ValueError("give one of --serper, --corpus and --evidence")
        check_input(self.corpus)
        check_input(self.evidence)
        if self.num_results < 1:
            raise ValueError(f"--num-results must be >= 1, got {self.num_results}")

    @property
    def num_evidence(self) -> int:
        """Places that are named."""
        return self.serper + (self.corpus is not None) + (self.evidence is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeOptions(AskingOptions, TextOptions, ABC):
    """A judge behind an OpenAI-compatible endpoint, and how it is asked.

    Each answer is kept in a folder as it comes, and is never paid for twice: a run that was
    interrupted goes on where it was when the same words start it again.
    """

    model: str
    """As the endpoint names it; the paper's is gpt-4.1-mini."""
    base_url: str = OPENAI_URL
    """Any OpenAI-compatible endpoint, as http://localhost:8000/v1 of vLLM."""

    def __post_init__(self) -> None:
        TextOptions.__post_init__(self)
        AskingOptions.__post_init__(self)

    @abstractmethod
    def judge(self, texts: Sequence[RecordedText], client: "ChatClient") -> dict[str, Any]:
        """The judge's name, metric_set, sampling, settings and rows."""

    def texts_to_judge(self) -> list[RecordedText]:
        """The recorded texts, of the first prompts where there is a limit."""
        texts = self.read()
        ids = list(dict.fromkeys(text.id for text in texts))[: self.limit]
        return [text for text in texts if text.id in set(ids)]

    def client(self) -> "ChatClient":
        """The judge; ValueError without the key of an endpoint that needs one."""
        from anchored.eval.quality.chat_client import ChatClient, Endpoint, api_key

        endpoint = Endpoint(
            model=self.model,
            base_url=self.base_url,
            timeout_s=self.timeout_s,
            seed=self.judge_seed,
            price_in=self.price_in,
            price_out=self.price_out,
        )
        return ChatClient(
            endpoint,
            self.requests(),
            api_key=api_key(self.api_key_env, is_needed=self.base_url == OPENAI_URL),
            attempts=self.attempts,
            concurrency=self.concurrency,
            progress=sys.stderr.isatty(),
        )

    def requests(self) -> "PaidRequests":
        """The folder of answers."""
        from anchored.eval.paid_requests import PaidRequests

        folder = self.answers or self.texts.with_name(f"{self.texts.name}.answers")
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is no folder to keep answers in")
        return PaidRequests(folder, max_retries=self.max_retries)


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeFluencyConfig(JudgeOptions):
    """Grades from 1 to 5 by the paper's rubric: anchored judge fluency RUN --model gpt-4.1-mini"""

    def judge(self, texts: Sequence[RecordedText], client: "ChatClient") -> dict[str, Any]:
        """Rows and their summary."""
        from anchored.eval.quality import fluency

        rows = fluency.fluency_rows(texts, client)
        summary = fluency.fluency_summary(rows)
        return _results("fluency", fluency.FLUENCY_METRIC, fluency.SAMPLING, summary, rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeFactualityConfig(EvidenceOptions, JudgeOptions):
    """Precision of the claims in texts: anchored judge factuality RUN --model gpt-4.1-mini --serper

    Claims are taken sentence by sentence, held against evidence (give one of --serper, --corpus and
    --evidence) and judged. "group" of the texts, as how frequent an entity is, splits the results.
    """

    def __post_init__(self) -> None:
        JudgeOptions.__post_init__(self)
        if not self.num_evidence:
            raise ValueError("give one of --serper, --corpus and --evidence")
        EvidenceOptions.__post_init__(self)

    def judge(self, texts: Sequence[RecordedText], client: "ChatClient") -> dict[str, Any]:
        """Rows and their summary."""
        from anchored.eval.quality import factuality

        retriever = self._retriever(client.requests)
        rows = factuality.factuality_rows(texts, client, retriever)
        summary = factuality.factuality_summary(rows)
        results = _results(
            "factuality", factuality.FACTUALITY_METRIC, factuality.SAMPLING, summary, rows
        )
        return {**results, "retriever": retriever.record()}

    def _retriever(self, requests: "PaidRequests") -> "Retriever":
        from anchored.eval.quality.chat_client import api_key
        from anchored.eval.retrieval import evidence

        if self.serper:
            key = api_key("SERPER_API_KEY", is_needed=True) or ""
            return evidence.SerperSearch(
                requests, api_key=key, count=self.num_results, url=self.serper_url
            )
        if self.evidence is not None:
            return evidence.RecordedEvidence(self.evidence, count=self.num_results)
        assert self.corpus is not None
        from anchored.eval.retrieval.bm25 import WordIndex

        folder = self.corpus.with_name(f"{self.corpus.name}.bm25")
        index = WordIndex(self.corpus, folder, progress=sys.stderr.isatty())
        return evidence.CorpusSearch(index, name=self.corpus.name, count=self.num_results)


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeWinRateConfig(JudgeOptions):
    """How often texts are preferred to others: anchored judge win-rate RUN --model gpt-4.1-mini

    Each setting is compared with texts of the same prompt and seed by a pool of settings, in both
    orders; the interval is a bootstrap over prompts.
    """

    num_comparisons: int = 200
    """Pairs for each setting, drawn by the seed."""
    pool: tuple[str, ...] = ()
    """Settings whose texts are competitors; all unless given."""
    seed: int = 0
    """Of the draw of pairs and of the bootstrap."""
    confidence: float = 0.95
    """Of the interval."""

    def judge(self, texts: Sequence[RecordedText], client: "ChatClient") -> dict[str, Any]:
        """Rows and their summary."""
        from anchored.eval.quality import win_rate

        config = win_rate.WinRateConfig(
            num_comparisons=self.num_comparisons,
            pool=self.pool,
            seed=self.seed,
            confidence=self.confidence,
        )
        rows = win_rate.win_rate_rows(texts, client, config)
        summary = win_rate.win_rate_summary(rows, config)
        results = _results("win-rate", win_rate.WIN_RATE_METRIC, win_rate.SAMPLING, summary, rows)
        return {**results, "config": asdict(config)}


def run(config: JudgeOptions) -> int:
    """Judge, print, write; returns the exit status. AnchoredError if nothing could be judged."""
    from anchored.eval.report.judgements import JUDGES

    texts, client = config.texts_to_judge(), config.client()
    try:
        results = config.judge(texts, client)
    finally:
        if client.requests.counts:
            print(_usage_line(client.usage()), file=sys.stderr)
    cells_of = JUDGES[results["judge"]]
    cells = {own["setting"]: cells_of(own) for own in results["settings"]}
    print(_table(cells))
    endpoint = {"model": config.model, "base_url": config.base_url, "seed": config.judge_seed}
    config.write(
        {"schema": "anchored-judge/1", "endpoint": endpoint, **results, "usage": client.usage()}
    )
    has_figures = any(next(iter(own.values())) is not None for own in cells.values())
    if not has_figures and (problem := _first_problem(results["rows"])):
        raise AnchoredError(f"nothing could be judged: {problem}")
    return 0


def _results(
    name: str, metric_set: str, sampling: "Sampling", summary: Summary, rows: Summary
) -> dict[str, Any]:
    return {
        "judge": name,
        "metric_set": metric_set,
        "sampling": asdict(sampling),
        "settings": summary,
        "rows": rows,
    }


def _table(cells: "dict[str, dict[str, Cell]]") -> str:
    from anchored.eval.report.judgements import columns_of
    from anchored.eval.report.tables import SETTING_COLUMN, terminal_table

    columns = [SETTING_COLUMN, *columns_of(next(iter(cells.values())))]
    return terminal_table([{"setting": name, **own} for name, own in cells.items()], columns)


def _usage_line(usage: dict[str, Any]) -> str:
    """What was asked, sent and paid."""
    parts = [
        f"{url}: {own.get('asked', 0)} asked, {own.get('kept', 0)} kept, {own.get('sent', 0)} sent"
        f" ({own.get('retried', 0)} again), {own.get('failed', 0)} failed"
        for url, own in usage["requests"].items()
    ]
    paid, cost = usage["tokens_paid"], usage["cost_usd"]
    parts.append(f"{paid['in']} + {paid['out']} tokens paid")
    return "; ".join(parts) + ("" if cost is None else f", {cost:.4f} USD")


def _first_problem(rows: Summary) -> str | None:
    found = [row["problem"] for row in rows]
    found += [own["problem"] for row in rows for own in row.get("claims", ())]
    return next((problem for problem in found if problem), None)
