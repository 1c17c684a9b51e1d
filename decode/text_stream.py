"""Text of a growing list of tokens: whole characters only, cut at stop strings."""

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerFast


class TextStream:
    """Emits text as tokens arrive; the pieces joined are `text`.

    Text that may yet become a stop string is held back, and bytes that do not end a character wait
    for the next token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, stop: tuple[str, ...] = ()) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._stop = stop
        self._waiting: list[int] = []
        self._held = ""
        self.text = ""
        self.is_stopped = False

    def push(self, token_id: int) -> str:
        """The text that this token makes certain, "" if none."""
        self._waiting.append(token_id)
        piece = self._decoder.step(self._backend, token_id)
        if piece is None:
            return ""
        self._waiting.clear()
        return self._emit(piece, is_last=False)

    def finish(self) -> str:
        """The text still held back; an incomplete character becomes the replacement character."""
        rest = self._backend.decode(self._waiting, skip_special_tokens=True)
        self._waiting.clear()
        return self._emit(rest, is_last=True)

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
