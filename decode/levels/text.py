"""Text of a growing list of symbols: whole characters only, cut at stop strings."""

import codecs
from typing import Protocol

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerFast


class SymbolText(Protocol):
    """How symbols become characters."""

    def push(self, symbol: int) -> str:
        """The characters that this symbol completes, "" if none."""
        ...

    def finish(self) -> str:
        """What is left of the text at its end."""
        ...


class TextStream:
    """Emits text as symbols (tokens or bytes) arrive; the pieces joined are `text`.

    Text that may yet become a stop string is held back.
    """

    def __init__(self, symbols: SymbolText, stop: tuple[str, ...] = ()) -> None:
        self._symbols = symbols
        self._stop = stop
        self._held = ""
        self.text = ""
        self.is_stopped = False

    def push(self, symbol: int) -> str:
        """The text that this symbol makes certain, "" if none."""
        piece = self._symbols.push(symbol)
        return self._emit(piece, is_last=False) if piece else ""

    def finish(self) -> str:
        """The text still held back, and what its symbols make of an incomplete character."""
        return self._emit(self._symbols.finish(), is_last=True)

    def _emit(self, piece: str, *, is_last: bool) -> str:
        if self.is_stopped:
            return ""
        pending = self._held + piece
        found = [
            (pending.find(stop) + len(stop), pending.find(stop))
            for stop in self._stop
            if stop in pending
        ]
        if found:  # the stop string that is complete first, wherever tokens end
            self.is_stopped = True
            return self._release(pending[: min(found)[1]], held="")
        keep = 0 if is_last else self._overlap(pending)
        return self._release(pending[: len(pending) - keep], held=pending[len(pending) - keep :])

    def _release(self, piece: str, *, held: str) -> str:
        self._held = held
        self.text += piece
        return piece

    def _overlap(self, pending: str) -> int:
        """Length of the longest end of `pending` with which a stop string may begin."""
        longest = max((len(stop) - 1 for stop in self._stop), default=0)
        for length in range(min(longest, len(pending)), 0, -1):
            if any(stop.startswith(pending[-length:]) for stop in self._stop):
                return length
        return 0


class TokenText:
    """Decodes tokens; bytes that do not end a character wait for the next token."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._waiting: list[int] = []

    def push(self, symbol: int) -> str:
        """The characters that this token completes, "" if none."""
        self._waiting.append(symbol)
        piece = self._decoder.step(self._backend, symbol)
        if piece is None:
            return ""
        self._waiting.clear()
        return piece

    def finish(self) -> str:
        """The tokens still waiting; an incomplete character becomes the replacement character."""
        rest: str = self._backend.decode(self._waiting, skip_special_tokens=True)
        self._waiting.clear()
        return rest


class ByteText:
    """Decodes UTF-8; each ill-formed piece becomes one replacement character, nothing is lost.

    A character that is not finished at the end of the text is left out: no end can follow it, so
    the text was cut there, and what goes on from it shows the character whole.
    """

    def __init__(self, begun: bytes = b"") -> None:
        """begun: the first bytes of a character, which the text goes on with."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._decoder.decode(begun)

    def push(self, symbol: int) -> str:
        """The characters that this byte completes, "" if none."""
        return self._decoder.decode(bytes([symbol]))

    def finish(self) -> str:
        """Nothing: what was not completed is left to a continuation."""
        return ""
