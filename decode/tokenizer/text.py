"""Text and tokens: what tokens add to a text, piece by piece, and the tokens that add a text."""

import codecs
import re
from collections.abc import Callable, Container, Iterable, Sequence
from functools import lru_cache

from transformers import PreTrainedTokenizerFast

from ..settings import RequestError
from .utf8 import cut_partial

REPLACEMENT = "\ufffd"
"""Ends the text of tokens that end inside a character."""

BYTE_NAME = re.compile(r"<0x[0-9A-Fa-f]{2}>")
"""Names of the tokens of a fallback."""

KEPT_TOKENS = 8
"""Tokens of a text that are decoded with the next one, up to twice as many: more than the four that
may hold one character, which is one of them where it comes from a fallback."""

PROMPT_END = 16
"""Tokens of a prompt that are decoded with what follows: more than the 4 bytes of a character."""

CLEANED_REACH = 19
"""Characters at the end of a cleaned-up text that what follows may change. Each of transformers'
ten replacements (" ." becomes ".", " 've" becomes "'ve") looks at up to its length less one."""

CLEANED_TOKENS = 32
"""Tokens of a cleaned-up text that are decoded with the next one, up to twice as many: words of a
few letters, whose text is longer than what a replacement reaches."""

ANCHORS = ("\n", "a", ".")
"""Texts before a continuation that show how it is tokenized inside a text: most tokenizers merge
nothing into a line end; some have none, or drop it."""


class TokenDecoder:
    """Decodes tokens as `tokenizer.decode(..., skip_special_tokens=True)` does."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer, self._backend = tokenizer, tokenizer.backend_tokenizer
        added = self._backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(i for i, token in added.items() if token.special)
        """Tokens that are no text."""
        self._has_fallback = "ByteFallback" in str(self._backend.decoder)
        # As transformers decides; of BPE it spoils texts.
        is_bpe = type(self._backend.model).__name__ == "BPE" and not getattr(
            tokenizer, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", 0
        )
        self.cleans_up = bool(tokenizer.clean_up_tokenization_spaces) and not is_bpe

    def __call__(self, token_ids: Sequence[int]) -> str:
        """The text of all tokens; RequestError where the tokenizer's decoder fails."""
        try:
            text = str(self._backend.decode(token_ids, skip_special_tokens=True))
        except Exception as error:  # tokenizers raises no other type
            reason = " ".join(str(error).split())
            raise RequestError(f"the tokenizer cannot decode the tokens drawn: {reason}") from error
        return str(self._tokenizer.clean_up_tokenization(text)) if self.cleans_up else text

    def byte_of(self, token_id: int) -> int | None:
        """The byte of a fallback's token, whose text depends on the bytes next to it."""
        name = self._backend.id_to_token(token_id) if self._has_fallback else None
        return int(name[3:5], 16) if name and BYTE_NAME.fullmatch(name) else None

    def added(self, before: Sequence[int], token_ids: Sequence[int]) -> str:
        """The text that tokens add to the text of those before them."""
        return added_text(self(before), self([*before, *token_ids]))


def added_text(before: str, whole: str) -> str:
    """The end of a text that the text before it does not have: all that follows what they share."""
    if whole.startswith(before):
        return whole[len(before) :]
    pairs = enumerate(zip(before, whole, strict=False))
    return whole[next((i for i, (a, b) in pairs if a != b), len(whole)) :]


class TextStream:
    """Emits text as symbols (tokens or bytes) arrive; the pieces joined are `text`.

    Text that may yet become a stop string is held back.
    """

    def __init__(
        self,
        symbols: "TokenText | ByteText",
        stop: tuple[str, ...] = (),
        stop_symbols: Container[int] = (),
    ) -> None:
        """stop, stop_symbols: texts and symbols at which to cut."""
        self._symbols, self._stop, self._stop_symbols = symbols, stop, stop_symbols
        self._held = ""
        self.text = ""
        self.is_stopped = False

    def push(self, symbol: int) -> str:
        """The text that this symbol makes certain, "" if none."""
        if symbol in self._stop_symbols:
            rest = self.finish()
            self.is_stopped = True
            return rest
        return self._emit(self._symbols.push(symbol), is_last=False)

    def finish(self) -> str:
        """The text still held back, and what its symbols make of an incomplete character."""
        return self._emit(self._symbols.finish(), is_last=True)

    def _emit(self, piece: str, *, is_last: bool) -> str:
        if self.is_stopped:
            return ""
        pending = self._held + piece
        whole = pending + self._symbols.tentative
        stops = [
            (whole.find(stop) + len(stop), whole.find(stop)) for stop in self._stop if stop in whole
        ]
        if stops:  # the stop string that is complete first, wherever tokens end
            self.is_stopped, certain, self._held = True, whole[: min(stops)[1]], ""
        else:
            end = len(pending) - (0 if is_last else self._overlap(pending))
            certain, self._held = pending[:end], pending[end:]
        self.text += certain
        return certain

    def _overlap(self, pending: str) -> int:
        """Length of the longest end of `pending` with which a stop string may begin."""
        longest = min(len(pending), max((len(stop) - 1 for stop in self._stop), default=0))
        ends = (pending[-length:] for length in range(longest, 0, -1))
        return next((len(end) for end in ends if any(s.startswith(end) for s in self._stop)), 0)


class TokenText:
    """Decodes tokens: the text that they add to a prompt's, `decode` of all less the prompt's.

    What later tokens may change waits: the start of a character, the end of a cleaned-up text. Each
    character comes with its last token, and where `decode` replaces all bytes of a fallback next to
    one that does not fit, that one alone is replaced. A token costs the same anywhere in a text.
    """

    def __init__(self, decoder: TokenDecoder, prompt: Sequence[int] = ()) -> None:
        self._decoder, self._prompt = decoder, prompt
        self._characters = FallbackCharacters(decoder)
        self._num_begun = 0
        """Bytes of a character in which the prompt ends."""
        # A few last tokens say what the next ones add, as a decoder looks at most at the first
        # token and at neighbors. `_shown` is the part of their text that is out.
        self._window: list[list[int]] = []
        """Tokens, and those of each character of a fallback together."""
        self._shown: str | None = None
        self.tentative = ""
        """The text after all certain text, if the text ends here."""

    def push(self, symbol: int) -> str:
        """The characters that this token completes, "" if none."""
        if symbol in self._decoder.special_token_ids:
            return ""
        if self._shown is None:
            self._window = self._end_of_prompt()
            self._shown = self._text(self._window)
        num_wrong, tokens = self._characters.push(symbol)
        text = self._replaced(num_wrong)
        if not tokens:
            return text
        self._num_begun = 0
        return text + self._added(tokens)

    def finish(self) -> str:
        """The text of tokens still waiting; an incomplete character becomes U+FFFD."""
        if self._shown is None:
            return ""
        return self._rest() + self._replaced(self._characters.give_up())

    def _text(self, window: Sequence[Sequence[int]]) -> str:
        return self._decoder([token for tokens in window for token in tokens])

    def _added(self, tokens: list[int]) -> str:
        """The text that these tokens make certain."""
        assert self._shown is not None
        reach, size = (
            (CLEANED_REACH, CLEANED_TOKENS) if self._decoder.cleans_up else (0, KEPT_TOKENS)
        )
        # 1. The new text but its end, which later tokens may change. Bytes that a character may
        #    begin with, at most three, are one U+FFFD.
        self._window.append(tokens)
        text = self._text(self._window)
        new = added_text(self._shown, text)
        is_begun = new.endswith(REPLACEMENT)
        num_open = min(len(new), reach) if reach else int(is_begun)
        certain, self.tentative = new[: len(new) - num_open], new[len(new) - num_open :]
        if is_begun:
            self.tentative = self.tentative[:-1]
        self._shown = text[: len(text) - num_open]
        # 2. The last tokens are kept, as long as some of their text is out.
        if len(self._window) > 2 * size:
            text = self._text(self._window[-size:])
            if len(text) > num_open + reach:
                self._window, self._shown = self._window[-size:], text[: len(text) - num_open]
        return certain

    def _rest(self) -> str:
        """The text of the window that is not out."""
        assert self._shown is not None
        text, self.tentative = self._text(self._window), ""
        rest, self._shown = added_text(self._shown, text), text
        return rest

    def _replaced(self, num_wrong: int) -> str:
        """All that waits, and U+FFFD for bytes after it that are no character's; "" for none."""
        of_text = num_wrong - self._num_begun
        if num_wrong:
            self._num_begun = 0
        return self._rest() + REPLACEMENT * of_text if of_text > 0 else ""

    def _end_of_prompt(self) -> list[list[int]]:
        """The last tokens of the prompt, some of whose text no later token changes."""
        size = len(self._prompt) if self._decoder.cleans_up else PROMPT_END
        while True:
            self._characters = FallbackCharacters(self._decoder)
            end = self._prompt[max(0, len(self._prompt) - size) :]
            tokens = [i for i in end if i not in self._decoder.special_token_ids]
            window = [self._characters.push(i)[1] for i in tokens]
            self._num_begun = len(self._characters.begun)
            if size >= len(self._prompt) or self._text(window):
                return [tokens for tokens in window if tokens]
            size *= 2


class FallbackCharacters:
    """Groups the bytes of a fallback into characters: a decoder replaces all bytes of a row of them
    where one does not fit."""

    def __init__(self, decoder: TokenDecoder) -> None:
        self._decoder = decoder
        self.begun: list[int] = []
        """Tokens of the first bytes of a character."""
        self._form = b""

    def push(self, token_id: int) -> tuple[int, list[int]]:
        """(bytes before that are no character's, the tokens whose text is whole now)."""
        byte = self._decoder.byte_of(token_id)
        if byte is None:
            return self.give_up(), [token_id]
        tokens, form = [*self.begun, token_id], self._form + bytes([byte])
        if (cut := cut_partial(form)) is None:
            if not self.begun:
                return 1, []
            num_wrong = self.give_up()
            more, tokens = self.push(token_id)
            return num_wrong + more, tokens
        self.begun, self._form = ([], b"") if cut[0] else (tokens, form)
        return 0, tokens if cut[0] else []

    def give_up(self) -> int:
        """Forget the character that was begun; the number of its bytes."""
        num_wrong, self.begun, self._form = len(self.begun), [], b""
        return num_wrong


class ByteText:
    """Decodes UTF-8; each ill-formed piece becomes one replacement character, nothing is lost.

    A character that is not finished at the end of the text is left out: no end can follow it, so
    the text was cut there, and what goes on from it shows the character whole.
    """

    tentative = ""

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


def special_names(
    tokenizers: Iterable[PreTrainedTokenizerFast], can_draw: Callable[[int], bool]
) -> dict[str, int]:
    """Special tokens, which are no text, by their names in any of the tokenizers."""
    return {
        token.content: token_id
        for tokenizer in tokenizers
        for token_id, token in tokenizer.added_tokens_decoder.items()
        if token.special and can_draw(token_id)
    }


def special_stops(
    stop: Sequence[str],
    tokenizers: Iterable[PreTrainedTokenizerFast],
    can_draw: Callable[[int], bool],
) -> frozenset[int]:
    """The special tokens that stop texts name in any of the tokenizers.

    can_draw: whether a token is ever drawn; others are names like any text. Raises ValueError for a
    stop text that holds such a name among others, which no text does.
    """
    names = special_names(tokenizers, can_draw) if stop else {}
    for text in stop:
        held = next((name for name in names if name in text), None)
        if held is not None and text not in names:
            raise ValueError(
                f"stop {text!r} holds the special token {held!r}, which is no text: give "
                f"{held!r} by itself"
            )
    return frozenset(names[text] for text in stop if text in names)


def continuation_token_ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """The tokens that add `text` to a text before them, without special tokens at its ends.

    A tokenizer that puts a space before a text, or takes its first space for one, would add a space
    too many. Where none of its tokens add the very text (as of words alone, or where it writes
    characters in another form), they are those of the text by itself.
    """
    token_ids = encoded(tokenizer, text, add_special_tokens=False)
    if not text or not _marks_beginnings(tokenizer):
        return token_ids
    decoder = TokenDecoder(tokenizer)
    for anchor in ANCHORS:
        try:
            before = encoded(tokenizer, anchor, add_special_tokens=False)
            whole = encoded(tokenizer, anchor + text, add_special_tokens=False)
        except RequestError:
            continue  # no token for the anchor
        inside = whole[len(before) :] if whole[: len(before)] == before else token_ids
        for tokens in (token_ids, inside):
            if decoder.added(before, tokens) == text:
                return tokens
    return token_ids


@lru_cache(maxsize=4)
def _marks_beginnings(tokenizer: PreTrainedTokenizerFast) -> bool:
    """True if a text by itself has other tokens than the same text after another."""
    try:
        word = encoded(tokenizer, "a", add_special_tokens=False)
    except RequestError:
        return False  # it knows whole words alone
    return TokenDecoder(tokenizer).added(word, word) != "a"


def encoded(
    tokenizer: PreTrainedTokenizerFast, text: str, *, add_special_tokens: bool
) -> list[int]:
    """The token ids of a text, none of an empty one; RequestError where the tokenizer fails."""
    if not text:
        return []
    try:
        encoding = tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)
    except Exception as error:  # tokenizers raises no other type, for a word without a token too
        reason = " ".join(str(error).split())
        raise RequestError(f"the tokenizer cannot read the text: {reason}") from error
    return list(encoding["input_ids"])
