"""The JSON of answers: whole or chunk by chunk, of completions and of chats."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..ledger import Ledger
from .asked import FIELD
from .figures import answer_figures, figures_at_the_top

FINISHED: Final = {"stop_token": "stop", "stop_string": "stop", "length": "length"}
"""OpenAI's words for how a text ended; others stay as they are."""


@dataclass(frozen=True, slots=True)
class Form:
    """The words in which one endpoint answers."""

    prefix: str
    whole: str
    chunk: str
    is_chat: bool

    def name(self, answer_id: str, place: int) -> str:
        """The name of a text in the journal, as vLLM has it."""
        return answer_id if self.is_chat else f"{answer_id}-{place}"


COMPLETIONS: Final = Form("cmpl", "text_completion", "text_completion", False)
CHATS: Final = Form("chatcmpl", "chat.completion", "chat.completion.chunk", True)


@dataclass(slots=True)
class TextSoFar:
    """One text of an answer, as its updates report it."""

    prompt_token_ids: list[int]
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    ledger: Ledger | None = None
    error: str = ""
    journal_id: str = ""
    """Its name in the journal, once it has ended."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The fields that all parts of one answer share."""

    form: Form
    answer_id: str
    model: str
    returns_token_ids: bool = False
    includes_usage: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, texts: Sequence[TextSoFar]) -> dict[str, Any]:
        """The answer of texts that have ended."""
        choices = [self._choice(place, text) for place, text in enumerate(texts)]
        answer = {**self._head(self.form.whole), "choices": choices, "usage": usage(texts)}
        return figures_at_the_top(answer, choices)

    def begun(self, place: int) -> dict[str, Any]:
        """The first chunk of a chat: who speaks."""
        delta = {"role": "assistant", "content": ""}
        return self._chunk([self._part(place, {"delta": delta})])

    def piece(self, place: int, text: str, token_ids: Sequence[int]) -> dict[str, Any]:
        """A chunk of a text that goes on."""
        return self._chunk([self._part(place, self._new(text), token_ids)])

    def last(
        self, place: int, text: str, token_ids: Sequence[int], whole: TextSoFar
    ) -> dict[str, Any]:
        """The chunk that ends a text, with what it cost."""
        choice = self._part(place, self._new(text), token_ids) | self._end(whole)
        return figures_at_the_top(self._chunk([choice]), [choice])

    def counted(self, texts: Sequence[TextSoFar]) -> dict[str, Any]:
        """The chunk without a choice that counts tokens, where a client asks for it."""
        return {**self._chunk([]), "usage": usage(texts)}

    def _head(self, kind: str) -> dict[str, Any]:
        head = {"id": self.answer_id, "object": kind, "created": self.created}
        return {**head, "model": self.model}

    def _chunk(self, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {**self._head(self.form.chunk), "choices": choices}

    def _new(self, text: str) -> dict[str, Any]:
        if not self.form.is_chat:
            return {"text": text}
        return {"delta": {"content": text} if text else {}}

    def _part(
        self, place: int, content: Mapping[str, Any], token_ids: Sequence[int] = ()
    ) -> dict[str, Any]:
        part = {"index": place, **content, "logprobs": None, "finish_reason": None}
        return {**part, "token_ids": list(token_ids)} if self.returns_token_ids else part

    def _choice(self, place: int, text: TextSoFar) -> dict[str, Any]:
        content: dict[str, Any] = {"text": text.text}
        if self.form.is_chat:
            message = {"role": "assistant", "content": text.text, "refusal": None}
            content = {"message": message}
        choice = {**self._part(place, content, text.token_ids), **self._end(text)}
        if self.returns_token_ids:
            choice["prompt_token_ids"] = text.prompt_token_ids
        return choice

    def _end(self, text: TextSoFar) -> dict[str, Any]:
        ledger = text.ledger
        assert ledger is not None, "the text has not ended"
        figures = answer_figures(
            text.journal_id,
            ledger.header,
            spent=ledger.spent,
            certified=ledger.certified,
            error=text.error,
        )
        reason = FINISHED.get(ledger.finish_reason, ledger.finish_reason)
        return {"finish_reason": reason, FIELD: figures}


def usage(texts: Sequence[TextSoFar]) -> dict[str, int]:
    """Symbols that were read and drawn: tokens, or bytes."""
    read = sum(len(text.prompt_token_ids) for text in texts)
    drawn = sum(len(text.token_ids) for text in texts)
    return {"prompt_tokens": read, "completion_tokens": drawn, "total_tokens": read + drawn}
