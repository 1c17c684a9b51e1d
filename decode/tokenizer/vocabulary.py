"""Everything about a tokenizer that byte-level decoding needs, made once from the tokenizer."""

import gc
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from tokenizers import Tokenizer

from .detection import detect_pretokenizer
from .merges import BaseSymbols, MergeTable
from .sentence_piece import MARK
from .tokenizer_file import TokenizerFile, read_tokenizer
from .trie import ByteTrie
from .viability import AddedTokens, Viability, ViabilityState

END_SYMBOL = 256
NUM_SYMBOLS = 257
HARD_TEXTS = (
    *("a", " a", "The  keeper's 1,234 lamps.\r\n\n  x", "caf\u00e9 \u4e2d\u6587\U0001f600"),
    *("\u0e01\u0301\u05d0 ", "def f(x):\n\treturn x", "\x00\x07\u00a0\u3000", "   "),
)
"""Spaces at both ends and in runs, line ends, digits, accents, scripts that bytes spell."""


@contextmanager
def _no_garbage_sought() -> Iterator[None]:
    """Nearly all of a million new objects stay: to look for others takes a third of the time."""
    restore = gc.enable if gc.isenabled() else gc.disable
    gc.disable()
    try:
        yield
    finally:
        restore()


class ByteVocabulary:
    """A BPE tokenizer as a trie of its tokens and the rule of what may follow what.

    Special tokens have no bytes and no probability, except that all of `stop_token_ids` together
    are symbol 256, the end of the text. `start_token_ids` come before every text, so that its
    first byte has a distribution: what the tokenizer puts there, or else `bos_token_id`, or else
    the first stop token (GPT-2 was trained with it between documents). `ordered_tokens`, int64,
    are all: of the rows of the trie, then the stop tokens, then those without a probability;
    `column_of` a token is its place there, `stop_columns` those of the stop tokens.
    `known_bytes` are those that some token holds: a text with another one has no probability, as
    the tokenizer leaves that byte out.
    """

    @_no_garbage_sought()
    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_token_ids: Sequence[int],
        bos_token_id: int | None = None,
        num_rows: int = sys.maxsize,
    ) -> None:
        """stop_token_ids: tokens that end a text, of either model. num_rows: token ids that the
        model predicts; it needs none for a special token that neither begins nor ends a text.

        Raises ValueError, in one line, for tokenizers that are not BPE of bytes or with byte
        fallback, for pretokenizers with a step that is not known, for stop tokens that are text,
        and for missing start tokens or rows.
        """
        # 1. The tokens that end and begin a text.
        file, ends = read_tokenizer(tokenizer), set(stop_token_ids)
        if are_text := (file.token_bytes.keys() - file.added_token_ids) & ends:
            raise ValueError(f"stop token {min(are_text)} is text")
        self._tokenizer, self.sha256 = tokenizer, file.sha256
        self.stop_token_ids = np.array(sorted(ends), np.int64)
        self.start_token_ids = _start_token_ids(file, stop_token_ids, bos_token_id)
        self.vocab_size = min(file.vocab_size, num_rows)
        if self.vocab_size <= (last := max(*file.token_bytes, *ends, *self.start_token_ids)):
            raise ValueError(f"token {last} has no row in the model, which has {num_rows}")
        # 2. The tokens that may follow which.
        self._piece = file.sentence_piece
        added = {t: file.token_bytes[t] for t in file.added_token_ids - ends}
        base = {t: b for t, b in file.token_bytes.items() if t not in file.added_token_ids}
        self.trie = ByteTrie({**base, **added})
        self.viability = _viability(tokenizer, file, self.trie, base, added)
        if self._piece is not None:
            self._check_texts()
        # 3. The order of columns.
        counted = np.concatenate((self.trie.tokens, self.stop_token_ids))
        others = np.setdiff1d(np.arange(self.vocab_size), counted)
        self.ordered_tokens = np.concatenate((counted, others))
        self.column_of = np.argsort(self.ordered_tokens)
        self.stop_columns: list[int] = self.column_of[self.stop_token_ids].tolist()
        self.known_bytes = frozenset(b"".join(self.trie.texts))
        longest_first = sorted(file.raw_literals, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first)) or "(?!)"  # which matches nowhere
        self._raw_literals = re.compile(f"({pattern})")

    def normalize(self, text: str) -> bytes:
        """The bytes that the tokenizer sees in a whole prompt (NFC where it asks for that, but for
        added tokens that it cuts out of the text as it is; a space for U+2581 where it marks
        spaces so)."""
        if self._piece is not None:
            return text.replace(MARK, " ").encode()
        normalizer = self._tokenizer.normalizer
        if normalizer is None:
            return text.encode()
        parts = self._raw_literals.split(text)
        parts[::2] = [normalizer.normalize_str(part) for part in parts[::2]]
        return "".join(parts).encode()

    def spelled(self, text: bytes) -> bytes:
        """The bytes that the tokens of a text spell: of some tokenizers, a space comes first."""
        return text if self._piece is None else self._piece.spelled(text)

    def _check_texts(self) -> None:
        """Raise ValueError where the library reads a text in other tokens than these rules."""
        for text in HARD_TEXTS:
            tokens = self._tokenizer.encode(text, add_special_tokens=False).ids
            are_text = all(token in self.trie.row_of for token in tokens)
            state: ViabilityState | None = self.viability.start() if are_text else None
            for token in tokens:
                state = state and self.viability.extend(state, token)
            spelled = [self.trie.texts[self.trie.row_of[t]] for t in tokens if state is not None]
            is_read = state is not None and self.viability.may_end(state)
            if not is_read or b"".join(spelled) != self.spelled(text.encode()):
                raise ValueError(f"byte level does not know how the tokenizer reads {text!r}")


def _viability(
    tokenizer: Tokenizer,
    file: TokenizerFile,
    trie: ByteTrie,
    base: Mapping[int, bytes],
    added: Mapping[int, bytes],
) -> Viability:
    symbols, spelled, automaton = None, None, None
    if (piece := file.sentence_piece) is not None:
        symbols = BaseSymbols(base, dict(enumerate(piece.byte_tokens)), piece.characters)
        automaton = piece.automaton()
        spelled = piece.spelled_classes(automaton)
    unwritten = {-1 - index: text for index, text in enumerate(file.unwritten)}  # no tokens
    return Viability(
        MergeTable(base, file.merges, symbols),
        trie,
        automaton or detect_pretokenizer(tokenizer),
        AddedTokens({**added, **unwritten}),
        has_whole_pretokens=file.has_whole_pretokens,
        spelled=spelled,
    )


def _start_token_ids(
    file: TokenizerFile, stop_token_ids: Sequence[int], bos_token_id: int | None
) -> tuple[int, ...]:
    first = [*([] if bos_token_id is None else [bos_token_id]), *stop_token_ids][:1]
    if not file.leading_token_ids and not first:
        raise ValueError("byte level needs a begin token or a stop token to put before a text")
    return file.leading_token_ids or tuple(first)
