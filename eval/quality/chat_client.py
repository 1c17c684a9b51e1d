"""The one client of chat models: any OpenAI-compatible endpoint, each answer paid for once."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

from tqdm import tqdm

from ..paid_requests import Answer, PaidRequests, RequestFailed

OPENAI_URL: Final = "https://api.openai.com/v1"

ATTEMPTS: Final = 3
"""Answers to the same messages that are read, at most."""
RETRY_TEMPERATURE: Final = 0.3
"""Of a further attempt where the first was drawn at 0, which would give the same answer again."""
TOKEN_LIMITS: Final = ("max_tokens", "max_completion_tokens")
"""Names of the limit of an answer's tokens: some services know the first alone, some the second."""

Message = dict[str, str]
Value = TypeVar("Value")
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """A model, where it is served, and how patiently it is asked."""

    model: str
    base_url: str = OPENAI_URL
    timeout_s: float = 120.0
    seed: int | None = None
    """Sent with each request, for services that draw by it."""
    price_in: float | None = None
    """US dollars for a million tokens of prompts."""
    price_out: float | None = None
    """US dollars for a million tokens of answers."""

    def __post_init__(self) -> None:
        address = urlsplit(self.base_url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ValueError(f"base_url must be an http or https address, got {self.base_url!r}")
        if address.username or address.password or address.query:
            raise ValueError("base_url must hold no key: results record it")
        if not self.model:
            raise ValueError("model must be a name, got ''")
        if not 0 < self.timeout_s < float("inf"):
            raise ValueError(f"timeout_s must be above 0, got {self.timeout_s}")
        for name in ("price_in", "price_out"):
            price = getattr(self, name)
            if price is not None and not 0 <= price < float("inf"):
                raise ValueError(f"{name} must be at least 0, got {price}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How an answer is drawn; None is the service's own."""

    temperature: float | None = 0.0
    top_p: float | None = None
    max_tokens: int = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked(Generic[Value]):
    """What was read in an answer, or why there is nothing."""

    value: Value | None
    problem: str | None = None
    """None where there is a value."""
    answer: str = ""
    """The last answer, as the model gave it."""


class ChatClient:
    """Answers of one endpoint, and the tokens that they took; threads may share it."""

    def __init__(
        self,
        endpoint: Endpoint,
        requests: PaidRequests,
        *,
        api_key: str | None,
        max_retries: int = 6,
        concurrency: int = 8,
        progress: bool = False,
    ) -> None:
        """api_key: None for services that ask for none; max_retries: further attempts of a request
        without an answer; concurrency: requests at once; progress: with a bar.

        Raises: ImportError without openai.
        """
        import openai

        self.endpoint, self.requests = endpoint, requests
        requests.repeated = max(requests.repeated, 2 * concurrency)
        self._concurrency, self._progress = concurrency, progress
        self._client = openai.OpenAI(
            api_key=api_key or "none",
            base_url=endpoint.base_url,
            timeout=endpoint.timeout_s,
            max_retries=max_retries,
        )
        self._guard = threading.Lock()
        self._tokens: dict[str, dict[str, int]] = {}
        self._token_limit = TOKEN_LIMITS[0]

    def ask(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        read: Callable[[str], Value | None],
    ) -> Asked[Value]:
        """What `read` finds in an answer; one in which it finds None is asked for again.

        Each attempt is a request of its own, so that an answer that is kept is not read twice. A
        request that fails ends the attempts. Raises: RequestRefused.
        """
        answer = ""
        for draw in range(ATTEMPTS):
            if draw and sampling.temperature == 0:
                sampling = replace(sampling, temperature=RETRY_TEMPERATURE)
            try:
                answer = self.complete(messages, sampling, draw=draw)
            except RequestFailed as error:
                return Asked(value=None, problem=str(error))
            if (value := read(answer)) is not None:
                return Asked(value=value, answer=answer)
        problem = f"none of {ATTEMPTS} answers could be read"
        return Asked(value=None, problem=problem, answer=answer)

    def complete(self, messages: Sequence[Message], sampling: Sampling, *, draw: int = 0) -> str:
        """The model's answer; `draw` tells apart answers to the same messages.

        Raises: RequestFailed, RequestRefused.
        """
        endpoint = self.endpoint
        body: dict[str, Any] = {
            "model": endpoint.model,
            # Half a character, as JSON can hold one, cannot be sent.
            "messages": [
                {name: own.encode(errors="replace").decode() for name, own in message.items()}
                for message in messages
            ],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self._token_limit: sampling.max_tokens,
            "seed": None if endpoint.seed is None else endpoint.seed + draw,
        }
        body = {name: value for name, value in body.items() if value is not None}
        request = {"url": endpoint.base_url.rstrip("/"), "body": body, "draw": draw}
        was_sent = False

        def send() -> str:
            nonlocal was_sent
            was_sent = True
            return str(self._client.chat.completions.with_raw_response.create(**body).text)

        try:
            answer = self.requests.answer(request, send, _read)
        except RequestFailed as error:
            if TOKEN_LIMITS[1] not in str(error) or TOKEN_LIMITS[1] in body:
                raise
            self._token_limit = TOKEN_LIMITS[1]  # the service asks for it, of all requests
            return self.complete(messages, sampling, draw=draw)
        self._count("paid" if was_sent else "kept", answer)
        return str(answer["text"])

    def each(self, work: Callable[[Item], Value], items: Sequence[Item], title: str) -> list[Value]:
        """`work` of each item, in their order, several at once.

        The first exception, or an interruption, ends it: requests on their way come and are kept.
        """
        with ThreadPoolExecutor(self._concurrency) as threads:
            futures = [threads.submit(work, item) for item in items]
            bar = tqdm(futures, title, disable=not self._progress, unit="")
            try:
                return [future.result() for future in bar]
            except BaseException:
                self.requests.stop()
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def usage(self) -> dict[str, Any]:
        """Requests and tokens so far, by whether they were paid now or kept; what it cost."""
        paid, kept = (self._tokens.get(name, {"in": 0, "out": 0}) for name in ("paid", "kept"))
        prices = self.endpoint.price_in, self.endpoint.price_out
        cost = None
        if prices[0] is not None and prices[1] is not None:
            cost = (paid["in"] * prices[0] + paid["out"] * prices[1]) / 1e6
        return {
            "requests": {url: dict(counts) for url, counts in self.requests.counts.items()},
            "tokens_paid": paid,
            "tokens_kept": kept,
            "cost_usd": cost,
        }

    def _count(self, kind: str, answer: Answer) -> None:
        with self._guard:
            tokens = self._tokens.setdefault(kind, {"in": 0, "out": 0})
            tokens["in"] += answer["tokens_in"]
            tokens["out"] += answer["tokens_out"]


def api_key(variable: str, *, is_needed: bool) -> str | None:
    """A key, from the environment alone; ValueError if it is needed and not there."""
    key = os.environ.get(variable)
    if is_needed and not key:
        raise ValueError(f"the environment has no key {variable}")
    return key or None


def _read(reply: Any) -> Answer:
    """Text and tokens of a completion; a model that only refuses or thinks gives no text."""
    usage = reply.get("usage") or {}
    return {
        "text": reply["choices"][0]["message"]["content"] or "",
        "tokens_in": int(usage.get("prompt_tokens") or 0),
        "tokens_out": int(usage.get("completion_tokens") or 0),
    }
