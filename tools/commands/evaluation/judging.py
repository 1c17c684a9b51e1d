"""The judges of anchored evaluate: which model, how it is asked, and where evidence comes from."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anchored import AnchoredError
from anchored.eval.quality.chat_client import OPENAI_URL, Endpoint
from anchored.eval.quality.win_rate import WinRateConfig
from anchored.eval.recorded_texts import RecordedText
from anchored.eval.retrieval.evidence import SERPER_URL
from anchored.fields import check_least
from anchored.inputs import check_input

if TYPE_CHECKING:
    from anchored.eval.quality.chat_client import ChatClient, Message, Sampling
    from anchored.eval.retrieval.evidence import Retriever

BYTES_A_TOKEN = 4
"""Bytes of English, for a plan of what will be paid; other scripts have more bytes to a letter."""


@dataclass(frozen=True, kw_only=True)  # no slots: those of several bases do not mix
class JudgeOptions:
    """A judge behind an OpenAI-compatible endpoint. Each answer is kept, and never paid twice."""

    judge_model: str | None = None
    """Model that judges, as the endpoint names it; the paper's is gpt-4.1-mini. Nothing is judged
    unless given."""
    judge_url: str = OPENAI_URL
    """Address of an OpenAI-compatible endpoint, as http://localhost:8000/v1 of vLLM."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable of the key, which nothing records; local endpoints need none."""
    answers: Path | None = None
    """Folder where answers are kept; RUN.answers unless given."""
    limit: int | None = None
    """First prompts whose texts are judged, so many; all unless given."""
    concurrency: int = 8
    """Requests that are sent at once."""
    max_retries: int = 6
    """Further attempts of a request that had no answer, as at a limit of its rate, an error of the
    server or a connection that broke."""
    timeout_s: float = 120.0
    """Seconds until a request is given up and made again."""
    judge_seed: int | None = None
    """Seed that is sent to the endpoint, for those that draw by it; none unless given."""
    judge_default_sampling: bool = False
    """Send neither temperature nor top-p, for models that take their defaults alone (o-series,
    gpt-5)."""
    price_in: float | None = None
    """Price of a million tokens of prompts in US dollars, to show what the judges cost."""
    price_out: float | None = None
    """Price of a million tokens of answers in US dollars."""

    def __post_init__(self) -> None:
        check_least(self, 1, "concurrency", "limit")
        check_least(self, 0, "max_retries", "price_in", "price_out")
        if self.judge_model is not None:
            self._endpoint()

    def client(self, texts: Path, *, needs_key: bool = True) -> "ChatClient":
        """The judge of these texts; ValueError without the key of an endpoint that needs one.

        needs_key: False for a plan, which sends nothing.
        """
        from anchored.eval.paid_requests import PaidRequests
        from anchored.eval.quality.chat_client import ChatClient, api_key

        folder = self.answers or texts.with_name(f"{texts.name}.answers")
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is no folder to keep answers in")
        return ChatClient(
            self._endpoint(),
            PaidRequests(folder),
            api_key=api_key(self.api_key_env, is_needed=needs_key and self.judge_url == OPENAI_URL),
            max_retries=self.max_retries,
            concurrency=self.concurrency,
            progress=sys.stderr.isatty(),
        )

    def _endpoint(self) -> Endpoint:
        return Endpoint(
            model=self.judge_model or "",
            base_url=self.judge_url,
            timeout_s=self.timeout_s,
            seed=self.judge_seed,
            default_sampling=self.judge_default_sampling,
            price_in=self.price_in,
            price_out=self.price_out,
        )


@dataclass(frozen=True, kw_only=True)
class EvidenceOptions:
    """The source of evidence for claims of factuality: give one of three."""

    serper: bool = False
    """Search for evidence with Google, through serper.dev; the key is in SERPER_API_KEY."""
    corpus: Path | None = None
    """File of passages that are searched for evidence by their words (BM25), JSON lines {"text":
    ..., optional "id"}."""
    evidence: Path | None = None
    """File of evidence that was found before, JSON lines {"claim": ..., "results": [{"title",
    "link", "text"}]}."""
    serper_url: str = SERPER_URL
    """Address that a search is sent to."""

    def __post_init__(self) -> None:
        if self.serper + (self.corpus is not None) + (self.evidence is not None) > 1:
            raise ValueError("give one of --serper, --corpus and --evidence")
        check_input(self.corpus)
        check_input(self.evidence)

    @property
    def has_evidence(self) -> bool:
        """Whether a source of evidence is named."""
        return self.serper or self.corpus is not None or self.evidence is not None

    def retriever(self, client: "ChatClient", *, max_retries: int) -> "Retriever":
        """The source of evidence for a claim."""
        from anchored.eval.quality.chat_client import api_key
        from anchored.eval.retrieval import evidence

        if self.serper:
            key = api_key("SERPER_API_KEY", is_needed=True) or ""
            return evidence.SerperSearch(
                client.requests, api_key=key, url=self.serper_url, max_retries=max_retries
            )
        if self.evidence is not None:
            return evidence.RecordedEvidence(self.evidence)
        assert self.corpus is not None  # EvaluateConfig refuses factuality without any
        from anchored.eval.retrieval.passages import WordIndex

        folder = self.corpus.with_name(f"{self.corpus.name}.bm25")
        index = WordIndex(self.corpus, folder, progress=sys.stderr.isatty())
        return evidence.CorpusSearch(index, name=self.corpus.name)


class Judging(JudgeOptions, EvidenceOptions, WinRateConfig):
    """All that the judges are given."""


def check_judge(
    options: Judging, texts: Sequence[RecordedText], run: Path, *, needs_key: bool
) -> None:
    """Raise ValueError, in one line, for a key, an address or an option that no judge can have."""
    from anchored.eval.retrieval.evidence import RecordedEvidence

    options.client(run, needs_key=needs_key)
    settings = {text.setting for text in texts}
    if unknown := [name for name in options.pool if name not in settings]:
        raise ValueError(f"there are no texts of {unknown[0]!r} for the pool")
    if options.evidence is not None:
        RecordedEvidence(options.evidence)


def judge_plan(name: str, texts: Sequence[RecordedText], options: Judging) -> str:
    """One line on the requests of a judge, before anything is paid; those with kept answers cost
    nothing."""
    messages, sampling = _first_requests(name, _judged_texts(texts, options), options)
    different = {"".join(m["content"] for m in request) for request in messages}  # sent once
    num_bytes = sum(len(text.encode(errors="replace")) for text in different)
    num_in, count = num_bytes // BYTES_A_TOKEN, len(different)
    most_out = count * sampling.max_tokens
    plan = f"{name}: {count:,} requests, about {num_in:,} tokens, at most {most_out:,} back"
    if options.price_in is not None and options.price_out is not None:
        price = (num_in * options.price_in + most_out * options.price_out) / 1e6
        plan += f", at most about {price:,.2f} USD"
    return plan + ("; then a search and a request for each claim" if name == "factuality" else "")


def _judged_texts(texts: Sequence[RecordedText], options: Judging) -> list[RecordedText]:
    ids = set(list(dict.fromkeys(text.id for text in texts))[: options.limit])
    return [text for text in texts if text.id in ids]


def _first_requests(
    name: str, texts: Sequence[RecordedText], options: Judging
) -> "tuple[list[list[Message]], Sampling]":
    """The messages of every request that does not depend on answers."""
    from anchored.eval.quality import factuality, fluency, win_rate

    if name == "fluency":
        shown = [text.text for text in texts if text.text.strip()]
        return [fluency.fluency_messages(text) for text in shown], fluency.SAMPLING
    if name == "factuality":
        windows = [window for text in texts for window in factuality.windows(text.text)]
        return [factuality.extraction_messages(window) for window in windows], factuality.SAMPLING
    pairs = [
        (p.text.prompt, p.text.text, p.competitor.text)
        for p in win_rate.comparisons(texts, options)
    ]
    messages = [
        win_rate.comparison_messages(prompt, *order)
        for prompt, one, two in pairs
        if one != two
        for order in ((one, two), (two, one))
    ]
    return messages, win_rate.SAMPLING


def judged(name: str, texts: Sequence[RecordedText], options: Judging, run: Path) -> dict[str, Any]:
    """A judge's results on texts, with its settings and what was paid, for a results file.

    name: "fluency", "factuality" or "win-rate". run: what the texts were read from.
    """
    from anchored.eval.quality import factuality, fluency, win_rate

    texts, client = _judged_texts(texts, options), options.client(run)
    print(judge_plan(name, texts, options), file=sys.stderr)
    judge: Any
    more: dict[str, Any] = {}
    try:
        if name == "fluency":
            judge, metric_set = fluency, fluency.FLUENCY_METRIC
            rows = fluency.fluency_rows(texts, client)
            settings = fluency.fluency_summary(rows)
        elif name == "factuality":
            judge, metric_set = factuality, factuality.FACTUALITY_METRIC
            retriever = options.retriever(client, max_retries=options.max_retries)
            rows = factuality.factuality_rows(texts, client, retriever)
            settings, more = factuality.factuality_summary(rows), {"retriever": retriever.record()}
        else:
            judge, metric_set = win_rate, win_rate.WIN_RATE_METRIC
            rows = win_rate.win_rate_rows(texts, client, options)
            pairs = {"num_comparisons": options.num_comparisons, "pool": options.pool}
            drawn = {"seed": win_rate.SEED, "confidence": win_rate.CONFIDENCE}
            settings, more = win_rate.win_rate_summary(rows), {"config": {**pairs, **drawn}}
    finally:
        if client.requests.counts:
            print(_usage_line(client.usage()), file=sys.stderr)
    return {
        **{"schema": "anchored-judge/1", "judge": name},
        "endpoint": {
            name: getattr(client.endpoint, name) for name in ("model", "base_url", "seed")
        },
        "metric_set": metric_set,
        "sampling": asdict(client.endpoint.sampled(judge.SAMPLING)),
        **more,
        **{"settings": settings, "rows": rows, "usage": client.usage()},
    }


def check_judged(results: dict[str, Any]) -> None:
    """Raise AnchoredError, with the first reason, where a judge could judge nothing."""
    from anchored.eval.analysis.evaluated import judged_figure

    figures = [judged_figure(results["judge"], setting) for setting in results["settings"]]
    problems = [row["problem"] for row in results["rows"]]
    problems += [claim["problem"] for row in results["rows"] for claim in row.get("claims", ())]
    problem = next(filter(None, problems), None)
    if problem and all(figure is None for figure in figures):
        raise AnchoredError(f"nothing could be judged: {problem}")


def has_failures(results: dict[str, Any]) -> bool:
    """Whether a judge has no answer to a part of what it was asked, which is asked again."""
    names = ("num_failed", "num_failed_sentences", "num_failed_claims")
    return any(figures.get(name) for figures in results["settings"] for name in names)


def _usage_line(usage: dict[str, Any]) -> str:
    """The account of requests, tokens and prices."""
    names = ("asked", "kept", "sent", "failed")
    parts = [
        f"{url}: {', '.join(f'{counts.get(name, 0)} {name}' for name in names)}"
        for url, counts in usage["requests"].items()
    ]
    paid, cost = usage["tokens_paid"], usage["cost_usd"]
    parts.append(f"{paid['in']} + {paid['out']} tokens paid")
    return "; ".join(parts) + ("" if cost is None else f", {cost:.4f} USD")
