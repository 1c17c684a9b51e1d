"""The JSON of answers: whole or chunk by chunk, of completions and of chats."""

import math
import time
from codecs import IncrementalDecoder, getincrementaldecoder
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from ...durable_files import json_value
from ..engine.log_probs import TokenLogProbs
from ..engine.request import Request
from ..generation import MOST_NATS
from ..ledger import Ledger
from ..levels.level import Level
from ..tokenizer.tokenizer_file import read_tokenizer
from .anchored_options import FIELD
from .body import Body
from .engine import Job, Update

FINISHED: Final = {"stop_token": "stop", "stop_string": "stop", "length": "length"}
"""OpenAI's words for how a text ended; others stay as they are."""


UTF8: Final = getincrementaldecoder("utf-8")

EXPOSED: Final = (
    "log-probabilities of p* tell of tokens that were not drawn and of which no nats are counted: "
    "no bound covers this answer"
)

IMPOSSIBLE: Final = -9999.0
"""A log-probability of -inf, which JSON lacks; OpenAI's number for it."""


@dataclass(frozen=True, slots=True)
class Form:
    """The words in which one endpoint answers."""

    prefix: str
    whole: str
    chunk: str
    is_chat: bool

    def name(self, answer_id: str, place: int) -> str:
        """The name of a text in the journal."""
        return answer_id if self.is_chat and place == 0 else f"{answer_id}-{place}"


COMPLETIONS: Final = Form("cmpl", "text_completion", "text_completion", False)
CHATS: Final = Form("chatcmpl", "chat.completion", "chat.completion.chunk", True)


@dataclass(slots=True)
class TextSoFar:
    """One text of an answer, as its updates report it."""

    job: Job
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[TokenLogProbs] = field(default_factory=list)
    prompt_log_probs: list[TokenLogProbs] = field(default_factory=list)
    told: IncrementalDecoder = field(default_factory=lambda: UTF8("replace"))
    """Decodes the bytes of the tokens whose log-probabilities were told."""
    num_told: int = 0
    """Characters of these tokens."""
    ledger: Ledger | None = None
    error: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class LogProbTexts:
    """The JSON of log-probabilities of one pair's symbols."""

    def __init__(self, level: Level) -> None:
        self._level = level
        self._token_bytes: Mapping[int, bytes] = {}
        if level.name == "token":
            with suppress(ValueError):  # of other tokenizers the texts of tokens have to do
                file = read_tokenizer(level.pair.tokenizer.backend_tokenizer)
                self._token_bytes = file.token_bytes

    def of_completion(
        self, places: Sequence[TokenLogProbs], text: TextSoFar, *, first: int | None = None
    ) -> dict[str, Any]:
        """The `logprobs` of a completion, or of the next part of one. first: the prompt's first
        symbol, which follows nothing, where the prompt is echoed."""
        begun = [] if first is None else [first]
        symbols, offsets = [*begun, *(place.token_id for place in places)], []
        for symbol in symbols:
            content = self._bytes(symbol)
            begins = bool(content) and content[0] & 0xC0 != 0x80  # what came before has ended
            text.num_told += len(text.told.decode(b"", final=begins))
            offsets.append(text.num_told)
            text.num_told += len(text.told.decode(content))
        none = [None] * len(begun)
        return {
            "tokens": [self._name(symbol) for symbol in symbols],
            "token_logprobs": [*none, *(_finite(place.log_prob) for place in places)],
            "top_logprobs": [*none, *map(self._likeliest, places)],
            "text_offset": offsets,
        }

    def of_chat(self, places: Sequence[TokenLogProbs]) -> dict[str, Any]:
        """The `logprobs` of an answer, or of a part of one."""
        content = [
            {
                **self._one(place.token_id, place.log_prob),
                "top_logprobs": [self._one(*top) for top in place.top],
            }
            for place in places
        ]
        return {"content": content, "refusal": None}

    def prompt(self, symbols: Sequence[int]) -> str:
        """The text of a prompt, without its special tokens."""
        if self._level.name == "byte":
            return bytes(symbols).decode("utf-8", "replace")
        return str(self._level.pair.tokenizer.decode(list(symbols), skip_special_tokens=True))

    def _bytes(self, symbol: int) -> bytes:
        """The bytes that a symbol adds to a text: none for its end and for special tokens."""
        if self._level.name == "byte":
            return b"" if symbol in self._level.stop_token_ids else bytes([symbol])
        return self._token_bytes.get(symbol) or self.prompt([symbol]).encode()

    def _name(self, symbol: int) -> str:
        """The text of one symbol alone; bytes that are no character by their numbers, as OpenAI's
        completions have them, and a special token by its name."""
        content = self._bytes(symbol)
        if not content:
            is_token = self._level.name == "token"
            return str(self._level.pair.tokenizer.decode([symbol])) if is_token else ""
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)

    def _likeliest(self, place: TokenLogProbs) -> dict[str, float]:
        """The likeliest texts, and that of the drawn symbol; of two symbols with one text the
        likelier, which comes first."""
        texts: dict[str, float] = {}
        for symbol, log_prob in (*place.top, (place.token_id, place.log_prob)):
            texts.setdefault(self._name(symbol), _finite(log_prob))
        return texts

    def _one(self, symbol: int, log_prob: float) -> dict[str, Any]:
        bytes_ = list(self._bytes(symbol))
        return {"token": self._name(symbol), "logprob": _finite(log_prob), "bytes": bytes_}


def _finite(log_prob: float) -> float:
    return log_prob if math.isfinite(log_prob) else IMPOSSIBLE


@dataclass(frozen=True, slots=True)
class Answer:
    """The fields that all parts of one answer share."""

    form: Form
    answer_id: str
    model: str
    body: Body
    texts: LogProbTexts
    """Texts of the pair's symbols."""
    first: Request
    """The first of its texts: all have log-probabilities, or none, and of one model."""
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def has_log_probs(self) -> bool:
        return self.first.num_top is not None

    @property
    def exposes(self) -> bool:
        """Whether log-probabilities are those of p*, which no bound covers."""
        return self.has_log_probs and self.first.exposes

    @property
    def shows_tokens(self) -> bool:
        """A client hears of tokens whose text is not certain yet."""
        return self.body.return_token_ids or self.has_log_probs

    def whole(self, texts: Sequence[TextSoFar]) -> dict[str, Any]:
        """The answer of texts that have ended."""
        choices = [self._choice(text) for text in texts]
        return {**self._with(self.form.whole, choices), "usage": self.usage(texts)}

    def begun(self, place: int) -> dict[str, Any]:
        """The first chunk of a chat: who speaks."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": place, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._chunk([choice])

    def piece(self, text: TextSoFar, update: Update) -> dict[str, Any]:
        """A chunk of a text that goes on."""
        return self._chunk([self._news(text, update)])

    def last(self, text: TextSoFar, update: Update) -> dict[str, Any]:
        """The chunk that ends a text, with what it cost."""
        return self._chunk([self._news(text, update) | self._end(text)])

    def counted(self, texts: Sequence[TextSoFar]) -> dict[str, Any]:
        """The chunk without a choice that counts tokens; {} unless the client asks for it."""
        if not self.body.stream_options.get("include_usage"):
            return {}
        return {**self._chunk([]), "usage": self.usage(texts)}

    def usage_so_far(self, texts: Sequence[TextSoFar]) -> dict[str, Any]:
        """The field of each chunk that counts tokens; {} unless the client asks for it."""
        if not self.body.stream_options.get("continuous_usage_stats"):
            return {}
        return {"usage": self.usage(texts)}

    def usage(self, texts: Sequence[TextSoFar]) -> dict[str, int]:
        """Symbols that were read and drawn so far, tokens or bytes; a prompt was read once."""
        read = sum(len(text.job.request.prompt_token_ids) for text in texts[:: self.body.n])
        drawn = sum(len(text.token_ids) for text in texts)
        return {"prompt_tokens": read, "completion_tokens": drawn, "total_tokens": read + drawn}

    def _with(self, kind: str, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The answer, or a chunk of it, with the figures of its choice where it has but one."""
        head = {"id": self.answer_id, "object": kind, "created": self.created, "model": self.model}
        is_one = len(choices) == 1 and FIELD in choices[0]
        figures = {FIELD: choices[0][FIELD]} if is_one else {}
        return {**head, "choices": choices, **figures}

    def _chunk(self, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return self._with(self.form.chunk, choices)

    def _news(self, text: TextSoFar, update: Update) -> dict[str, Any]:
        """The part of a choice that an update, the text's last one so far, has brought."""
        is_first = len(text.token_ids) == len(update.token_ids)
        said = self._echoed(text) * is_first + update.text
        content = (
            {"delta": {"content": said} if said else {}} if self.form.is_chat else {"text": said}
        )
        before = len(text.log_probs) - len(update.log_probs)
        return self._part(text, content, update.token_ids, text.log_probs[before:], is_first)

    def _choice(self, text: TextSoFar) -> dict[str, Any]:
        content: dict[str, Any] = {"text": self._echoed(text) + text.text}
        if self.form.is_chat:
            message = {"role": "assistant", "content": text.text, "refusal": None}
            content = {"message": message}
        part = self._part(text, content, text.token_ids, text.log_probs, True)
        choice = {**part, **self._end(text)}
        if self.body.return_token_ids:
            choice["prompt_token_ids"] = text.job.request.prompt_token_ids
        return choice

    def _echoed(self, text: TextSoFar) -> str:
        return self.texts.prompt(text.job.request.prompt_token_ids) if self.body.echo else ""

    def _part(
        self,
        text: TextSoFar,
        content: Mapping[str, Any],
        token_ids: Sequence[int],
        log_probs: Sequence[TokenLogProbs],
        is_first: bool,
    ) -> dict[str, Any]:
        """log_probs: of these tokens. is_first: they are the text's first ones."""
        part = {"index": text.job.place, **content, "logprobs": None, "finish_reason": None}
        if self.has_log_probs and self.form.is_chat:
            part["logprobs"] = self.texts.of_chat(log_probs)
        elif self.has_log_probs:
            first = text.job.request.prompt_token_ids[0] if is_first and self.body.echo else None
            places = log_probs if first is None else [*text.prompt_log_probs, *log_probs]
            part["logprobs"] = self.texts.of_completion(places, text, first=first)
        return {**part, "token_ids": list(token_ids)} if self.body.return_token_ids else part

    def _end(self, text: TextSoFar) -> dict[str, Any]:
        ledger = text.ledger
        assert ledger is not None, "the text has not ended"
        reason = FINISHED.get(ledger.finish_reason, ledger.finish_reason)
        return {"finish_reason": reason, FIELD: json_value(self._figures(text, ledger))}

    def _figures(self, text: TextSoFar, ledger: Ledger) -> dict[str, Any]:
        """The cost of a text that has ended; nats.

        Where drawn tokens are charged, "times_as_likely" is e**spent: how many times as likely the
        text was as from the safe model, at most.
        """
        header, names = ledger.header, ("rule", "horizon", "k", "K", "debt")
        figures: dict[str, Any] = {
            "id": text.job.request_id,
            **{name: getattr(header, name) for name in names},
            "spent": ledger.spent,
            "bound": header.bound,
            "certified": ledger.certified and not self.exposes,
        }
        for name in ("bank", "charge"):
            if (value := getattr(header, name)) is not None:
                figures[name] = value
        if header.charge == "drawn" and figures["certified"]:
            figures["times_as_likely"] = math.exp(min(ledger.spent, MOST_NATS))
        if text.error:
            figures["error"] = text.error
        if self.exposes:
            figures["uncertified"] = EXPOSED
        return figures
