"""The one client of chat models: any OpenAI-compatible endpoint, each answer paid for once."""

import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

from tqdm import tqdm

from ..paid_requests import Answer, PaidRequests, RequestFailed, service_client

OPENAI_URL: Final = "https://api.openai.com/v1"

ATTEMPTS: Final = 3
"""Largest number of answers to the same messages that are read."""
RETRY_TEMPERATURE: Final = 0.3
"""Temperature of another attempt if the first was drawn at 0, which gives the same answer again."""
CUT: Final = ("length", "max_tokens", "model_length")
FILTERED: Final = ("content_filter", "safety", "recitation", "refusal")
"""Services' names, in lower case, of an end of an answer that is no answer."""
TOKEN_LIMITS: Final = ("max_tokens", "max_completion_tokens")
"""Names of the limit of an answer's tokens: some services know the first alone, some the second."""
RESULT: Final = r"\[RESULT\]"
"""The mark before a grade or a choice."""

Message = dict[str, str]
Value = TypeVar("Value")
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """The sampling of an answer; None is the service's default."""

    temperature: float | None = 0.0
    top_p: float | None = None
    max_tokens: int = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """A served model, with its address and the limits of requests."""

    model: str
    base_url: str = OPENAI_URL
    timeout_s: float = 120.0
    seed: int | None = None
    """Seed of each request, for services that draw by it."""
    default_sampling: bool = False
    """Whether temperature and top_p are left out, for models that take no others than theirs."""
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
            if not 0 <= (getattr(self, name) or 0) < float("inf"):
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")

    def sampled(self, sampling: Sampling) -> Sampling:
        """The sampling that this endpoint gets."""
        is_default = self.default_sampling
        return replace(sampling, temperature=None, top_p=None) if is_default else sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading(Generic[Value]):
    """The value that was read in an answer, or the reason for which there is none."""

    value: Value | None
    problem: str | None = None
    """The reason; None with a value."""
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
        without an answer; concurrency: requests at once; progress: with a bar. Raises: ImportError
        without openai."""
        self.endpoint, self.requests = endpoint, requests
        requests.repeated = max(requests.repeated, 2 * concurrency)
        self._concurrency, self._progress = concurrency, progress
        self._client = service_client(
            api_key=api_key or "none",
            base_url=endpoint.base_url,
            timeout=endpoint.timeout_s,
            max_retries=max_retries,
        )
        self._guard = threading.Lock()
        self._tokens = {kind: {"in": 0, "out": 0} for kind in ("paid", "kept")}
        self._token_limit = TOKEN_LIMITS[0]

    def ask(
        self, messages: Sequence[Message], sampling: Sampling, read: Callable[[str], Value | None]
    ) -> Reading[Value]:
        """The value that `read` finds in an answer; after None another one is requested, and only
        the one that could be read is kept. Text up to </think> is not read. A request that fails
        ends the attempts. Raises: RequestRefused."""

        def value(answer: Answer) -> Value | None:
            is_whole = "problem" not in answer
            return read(answer["text"].rpartition("</think>")[2]) if is_whole else None

        def is_useful(answer: Answer) -> bool:
            return value(answer) is not None

        def was_read(draw: int) -> bool:
            request = self._request(messages, drawn[draw], draw, is_useful)
            return self.requests.kept(request, is_useful) is not None

        again = RETRY_TEMPERATURE if sampling.temperature == 0 else sampling.temperature
        drawn = [sampling, *[replace(sampling, temperature=again)] * (ATTEMPTS - 1)]
        answer: Answer = {"text": ""}
        for draw in sorted(range(ATTEMPTS), key=was_read, reverse=True):
            try:
                answer = self.complete(messages, drawn[draw], draw=draw, is_useful=is_useful)
            except RequestFailed as error:
                return Reading(value=None, problem=str(error))
            if (readable := value(answer)) is not None:
                return Reading(value=readable, answer=answer["text"])
        why = f": {answer['problem']}" if "problem" in answer else ""
        problem = f"none of {ATTEMPTS} answers could be read{why}"
        return Reading(value=None, problem=problem, answer=answer["text"])

    def complete(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        draw: int = 0,
        is_useful: Callable[[Answer], bool] = bool,
    ) -> Answer:
        """The model's "text", its "tokens_in" and "tokens_out", and the "problem" of a part. draw:
        distinguishes answers to the same messages; is_useful: whether one is kept. Raises:
        RequestFailed, RequestRefused."""
        request = self._request(messages, sampling, draw, is_useful)
        body, was_sent = request["body"], False

        def send() -> str:
            nonlocal was_sent
            was_sent = True
            return str(self._client.chat.completions.with_raw_response.create(**body).text)

        try:
            answer = self.requests.answer(request, send, _read, is_useful)
        except RequestFailed as error:
            if TOKEN_LIMITS[1] not in error.reply or TOKEN_LIMITS[1] in body:
                raise
            self._token_limit = TOKEN_LIMITS[1]  # the service asks for it, of all requests
            return self.complete(messages, sampling, draw=draw, is_useful=is_useful)
        with self._guard:
            for way in ("in", "out"):
                self._tokens["paid" if was_sent else "kept"][way] += answer[f"tokens_{way}"]
        return answer

    def _request(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        draw: int,
        is_useful: Callable[[Answer], bool],
    ) -> dict[str, Any]:
        """The request whose answer is kept, by either name of the limit, else the one to send."""
        endpoint, sampling = self.endpoint, self.endpoint.sampled(sampling)
        body: dict[str, Any] = {
            "model": endpoint.model,
            # Half a character, as JSON can hold one, cannot be sent.
            "messages": [
                {name: text.encode(errors="replace").decode() for name, text in message.items()}
                for message in messages
            ],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": None if endpoint.seed is None else endpoint.seed + draw,
        }
        body = {name: value for name, value in body.items() if value is not None}
        url, limit = endpoint.base_url.rstrip("/"), sampling.max_tokens
        names = sorted(TOKEN_LIMITS, key=lambda name: name != self._token_limit)
        requests = [{"url": url, "body": {**body, name: limit}, "draw": draw} for name in names]
        kept = (request for request in requests if self.requests.kept(request, is_useful))
        return next(kept, requests[0])

    def each(self, work: Callable[[Item], Value], items: Sequence[Item], title: str) -> list[Value]:
        """`work` of each item, in their order, several at once. The first exception, or an
        interruption, ends it: requests on their way come and are kept."""
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
        """Requests and tokens so far, paid now or kept, and their cost."""
        paid, kept = (dict(self._tokens[kind]) for kind in ("paid", "kept"))
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


def messages_of(system: str, user: str) -> list[Message]:
    """The messages that ask a judge."""
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def verdict_form(
    values: str, *, before: str = RESULT, after: str = "", label: str = r"(?!)"
) -> re.Pattern[str]:
    """The form of a verdict: a line that ends with a value after its mark, the only one there. What
    is before the mark ends as a sentence does, as words that go on may deny or doubt the verdict,
    or begins with a label. values, before, after, label: regular expressions, the first with one
    group. A colon, brackets, emphasis and a full stop around the value mean nothing."""
    no_mark, sign = rf"(?!{before})", r"[^\w\n]|_"
    words = rf"(?:{no_mark}.)*[.!?:\u3002\uff01\uff1f\uff1a]|(?:{sign})*{label}(?:{no_mark}.)*"
    opening, closing = r"[\s:*_`\"'(\[]*", r"[*_`\"')\].!]*"
    line_end = r"[*_ \t]*$"
    line = rf"^(?:{words})?(?:{no_mark}(?:{sign}))*{before}"
    pattern = rf"{line}{opening}{values}{closing}\s*{after}{line_end}"
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


def verdict_of(answer: str, form: re.Pattern[str]) -> str | None:
    """The value with which an answer ends, in lower case. None for an answer that ends with
    anything else, as a half sentence, or has two verdicts."""
    verdicts = list(form.finditer(answer))
    values = {match[1].lower() for match in verdicts}
    is_clear = len(values) == 1 and not answer[verdicts[-1].end() :].strip()
    return values.pop() if is_clear else None


def api_key(variable: str, *, is_needed: bool) -> str | None:
    """A key, from the environment alone; ValueError if it is needed and missing."""
    key = os.environ.get(variable)
    if is_needed and not key:
        raise ValueError(f"the environment has no key {variable}")
    return key or None


def _read(reply: Any) -> Answer:
    """Text and tokens of a completion, with its problem if it is no whole answer."""
    usage, choice = reply.get("usage") or {}, reply["choices"][0]
    text, reason = choice["message"]["content"], str(choice.get("finish_reason")).lower()
    if isinstance(text, list):  # with the parts of a reasoning, which are no answer
        text = "".join(part["text"] for part in text if part["type"] == "text")
    if not isinstance(text, str | None):
        raise TypeError("an answer must be a text")
    problems = {
        "filtered by the service": reason in FILTERED,
        "cut at its limit of tokens": reason in CUT,
        "a refusal": choice["message"].get("refusal"),
        "empty": not (text or "").strip(),
    }
    problem = next((name for name, is_so in problems.items() if is_so), None)
    return {
        "text": text or "",
        "tokens_in": int(usage.get("prompt_tokens") or 0),
        "tokens_out": int(usage.get("completion_tokens") or 0),
        **({"problem": problem} if problem else {}),
    }
