"""Characters of a growing list of tokens."""

from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerFast


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
