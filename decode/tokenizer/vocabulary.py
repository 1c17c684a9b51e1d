"""Everything about a tokenizer that byte-level decoding needs, made once from the tokenizer."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from tokenizers import Tokenizer

from .detection import detect_pretokenizer
from .merges import MergeTable
from .tokenizer_file import TokenizerFile, read_tokenizer
from .trie import ByteTrie
from .viability import AddedTokens, Viability

END_SYMBOL = 256
NUM_SYMBOLS = 257


@contextmanager
def _no_garbage_sought() -> Iterator[None]:
    """Nearly all of a million new objects stay: to look for others takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class ByteVocabulary:
    """A byte-level BPE tokenizer as a trie of its tokens and the rule of what may follow what.

    Special tokens have no bytes and no probability, except that all of `stop_token_ids` together
    are symbol 256, the end of the text. `start_token_ids` stand before every text, so that its
    first byte has a distribution: what the tokenizer puts there, or else `bos_token_id`, or else
    the first stop token (GPT-2 was trained with it between documents). `ordered_tokens`, int64,
    are all: of the rows of the trie, then the stop tokens, then those without a probability.
    `known_bytes` are those that some token holds: a text with another one has no probability, as
    the tokenizer leaves that byte out.
    """

    @_no_garbage_sought()
    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_token_ids: Sequence[int],
        bos_token_id: int | None = None,
    ) -> None:
        """stop_token_ids: tokens that end a text, of either model.

        Raises ValueError, in one line, for tokenizers that are not byte-level BPE, for
        pretokenizers with a step that is not known, for stop tokens that stand for text, and
        for missing start tokens.
        """
        file = read_tokenizer(tokenizer)
        plain = file.token_bytes.keys() - file.added_token_ids
        if stands_for_text := plain & set(stop_token_ids):
            raise ValueError(f"stop token {min(stands_for_text)} stands for text")
        self._tokenizer = tokenizer
        self.stop_token_ids = np.array(sorted(set(stop_token_ids)), np.int64)
        self.start_token_ids = _start_token_ids(file, stop_token_ids, bos_token_id)
        self.vocab_size = file.vocab_size
        self.sha256 = file.sha256
        added = file.added_token_ids
        literals = {token: file.token_bytes[token] for token in added - set(stop_token_ids)}
        base = {token: text for token, text in file.token_bytes.items() if token not in added}
        self.trie = ByteTrie({**base, **literals})
        self.viability = Viability(
            MergeTable(base, file.merges),
            self.trie,
            detect_pretokenizer(tokenizer),
            AddedTokens(literals),
            has_whole_pretokens=file.has_whole_pretokens,
        )
        counted = np.concatenate((self.trie.tokens, self.stop_token_ids))
        others = np.setdiff1d(np.arange(self.vocab_size), counted)
        self.ordered_tokens = np.concatenate((counted, others))
        self.known_bytes = frozenset(b"".join(self.trie.texts))

    def normalize(self, text: str) -> bytes:
        """The bytes that the tokenizer sees in a whole prompt (NFC where it asks for that)."""
        normalizer = self._tokenizer.normalizer
        return (text if normalizer is None else str(normalizer.normalize_str(text))).encode()


def _start_token_ids(
    file: TokenizerFile, stop_token_ids: Sequence[int], bos_token_id: int | None
) -> tuple[int, ...]:
    if file.leading_token_ids:
        return file.leading_token_ids
    first = [*([] if bos_token_id is None else [bos_token_id]), *stop_token_ids]
    if not first:
        raise ValueError("byte level needs a begin token or a stop token to stand before a text")
    return (first[0],)
