"""Documents to token ids between BOS and EOS, with a tokenizer.json."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from ...durable_files import file_sha256
from .documents import Document, DocumentRules, Verdict

TOKENIZER_NAME = "tokenizer.json"
BOS_TOKEN = "<|begin_of_text|>"
EOS_TOKEN = "<|end_of_text|>"
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": BOS_TOKEN,
    "eos_token": EOS_TOKEN,
    "clean_up_tokenization_spaces": False,
    "model_input_names": ["input_ids", "attention_mask"],
}
"""The contents of a tokenizer_config.json that says no more."""
# encode_batch_fast spreads a batch over the cores; beyond some hundred documents nothing is
# gained, and a batch of books must not fill the memory.
_BATCH_DOCUMENTS = 256
_BATCH_BYTES = 4_000_000


def tokenizer_file(name: str) -> Path:
    """The path of a tokenizer.json, downloaded into the Hub's cache if it is not local.

    name: the file, its folder, or a Hub model as OWNER/NAME@REVISION.
    Raises: ValueError if there is no such file, or a Hub model is named without a revision.
    """
    path = Path(name)
    if path.is_file():
        return path
    if path.is_dir():
        if not (path / TOKENIZER_NAME).is_file():
            raise ValueError(f"tokenizer folder {path} has no {TOKENIZER_NAME}")
        return path / TOKENIZER_NAME
    model, _, revision = name.partition("@")
    if model.count("/") != 1 or not revision:
        raise ValueError(
            f"tokenizer {name} is neither a file, nor a folder, nor OWNER/NAME@REVISION"
        )
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(model, TOKENIZER_NAME, revision=revision))
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"tokenizer {name} cannot be downloaded: {reason}") from error


def check_tokenizer(file: Path, sha256: str) -> None:
    """Raise ValueError unless this is the tokenizer.json that data was tokenized by."""
    if not file.is_file():
        raise ValueError(f"tokenizer file {file} does not exist")
    if (actual := file_sha256(file)) != sha256:
        raise ValueError(
            f"{file} is not the tokenizer of the run: its sha256 is {actual}, and the data was "
            f"tokenized by {sha256}"
        )


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

    def __init__(self, tokenizer_file: Path) -> None:
        """Raises ValueError if the file is no tokenizer.json, or lacks BOS or EOS."""
        try:  # of tokenizers itself comes a bare Exception
            table = json.loads(tokenizer_file.read_bytes())
            if not (isinstance(table, dict) and isinstance(table.get("model"), dict)):
                raise ValueError("it has no model")
        except ValueError as error:
            raise ValueError(f"{tokenizer_file} is no tokenizer.json: {error}") from None
        self.sha256 = file_sha256(tokenizer_file)
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self._tokenizer.encode_special_tokens = True
        # transformers writes both into the file where it was once called so; every text would be
        # cut to that length, or filled up.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.vocab_size = self._tokenizer.get_vocab_size()
        vocabulary = self._tokenizer.get_vocab()
        for token in (BOS_TOKEN, EOS_TOKEN):
            if token not in vocabulary:
                raise ValueError(f"tokenizer {tokenizer_file} has no token {token}")
        self.bos_id, self.eos_id = vocabulary[BOS_TOKEN], vocabulary[EOS_TOKEN]

    def encode(
        self, documents: Iterable[Document], rules: DocumentRules
    ) -> Iterator[EncodedDocument]:
        """Every document in its order, judged, and encoded if it is kept."""
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
                    ids = [self.bos_id, *next(encodings).ids, self.eos_id]
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
