"""Documents to token ids between a begin and an end token, with a tokenizer.json."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...durable_files import file_sha256
from .documents import Document, DocumentRules, Verdict
from .tokenizer import NO_TOKEN, document_begin, document_end, read_tokenizer

# encode_batch_fast spreads a batch over the cores; beyond some hundred documents nothing is
# gained, and a batch of books must not fill the memory.
_BATCH_DOCUMENTS = 256
_BATCH_BYTES = 4_000_000


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """A document, what became of it, and its (num_tokens,) uint32 tokens if it is kept."""

    document: Document
    verdict: Verdict
    token_ids: np.ndarray | None

    @property
    def size(self) -> tuple[int, int]:
        """Bytes of text and tokens; none of what is not kept."""
        if self.token_ids is None:
            return 0, 0
        return len(self.document.text or b""), len(self.token_ids)


class DocumentEncoder:
    """The same text always gives the same ids, whatever is next to it.

    Special tokens in a text are encoded as ordinary text, so that no document can end itself.
    """

    def __init__(self, tokenizer_file: Path, *, begin_token: str = "", end_token: str = "") -> None:
        """begin_token, end_token: names, as `document_begin` and `document_end` take them.

        Raises ValueError as these and `read_tokenizer`, and if one token is to be both.
        """
        self.file, self.sha256 = tokenizer_file, file_sha256(tokenizer_file)
        self._tokenizer = read_tokenizer(tokenizer_file)
        self.begin_token = document_begin(self._tokenizer, tokenizer_file, begin_token)
        self.end_token = document_end(self._tokenizer, tokenizer_file, end_token)
        if self.begin_token == self.end_token:
            raise ValueError(
                f"tokenizer {tokenizer_file} begins and ends a text with {self.end_token}, so that "
                f"no document shows its end: name another --end-token, or --begin-token {NO_TOKEN}"
            )
        vocabulary = self._tokenizer.get_vocab()
        self.vocab_size = 1 + max(vocabulary.values())  # ids may have gaps
        has_begin = self.begin_token != NO_TOKEN
        self.bos_id = vocabulary[self.begin_token] if has_begin else None
        self.eos_id = vocabulary[self.end_token]

    def encode(
        self, documents: Iterable[Document], rules: DocumentRules
    ) -> Iterator[EncodedDocument]:
        """Every document in its order, judged, and encoded if it is kept."""
        begin = () if self.bos_id is None else (self.bos_id,)
        for batch in _batches(documents):
            verdicts = [rules.verdict(document) for document in batch]
            texts = [
                document.text.decode()
                for document, verdict in zip(batch, verdicts, strict=True)
                if verdict.is_kept and document.text
            ]
            encodings = iter(self._tokenizer.encode_batch_fast(texts, add_special_tokens=False))
            for document, verdict in zip(batch, verdicts, strict=True):
                token_ids = None
                if verdict.is_kept:
                    ids = [*begin, *next(encodings).ids, self.eos_id]
                    token_ids = np.array(ids, dtype="<u4")
                yield EncodedDocument(document, verdict, token_ids)


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    num_bytes = 0
    for document in documents:
        batch.append(document)
        num_bytes += len(document.text or b"")
        if len(batch) >= _BATCH_DOCUMENTS or num_bytes >= _BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch
