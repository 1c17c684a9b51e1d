"""The tokenizer of training: its files, that it loses no text, and what begins and ends texts."""

import json
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from ...durable_files import file_sha256
from .documents import Document, DocumentRules, Verdict

TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
NO_TOKEN = "none"
"""Name of the begin token of documents that have none."""
# encode_batch_fast spreads a batch over the cores; beyond some hundred documents nothing is
# gained, and a batch of books must not fill the memory.
_BATCH_DOCUMENTS = 256
_BATCH_BYTES = 4_000_000


def tokenizer_file(name: str) -> Path:
    """The path of a tokenizer.json, downloaded into the Hub's cache if it is not local.

    name: the file, its folder, or a Hub model as OWNER/NAME@REVISION, whose tokenizer_config.json
        is downloaded too if it has one.
    Raises: ValueError if there is no such file, or a Hub model is named without a revision; OSError
    as the Hub's library.
    """
    path = Path(name)
    if path.is_file():
        return path
    if path.is_dir():
        return _file_in(path, name)
    model, _, revision = name.partition("@")
    if model.count("/") != 1 or not revision:
        raise ValueError(
            f"tokenizer {name} is neither a file, nor a folder, nor OWNER/NAME@REVISION"
        )
    from huggingface_hub import snapshot_download

    names = [TOKENIZER_NAME, TOKENIZER_CONFIG_NAME]
    folder = snapshot_download(model, revision=revision, allow_patterns=names)
    return _file_in(Path(folder), name)


def _file_in(folder: Path, name: str) -> Path:
    if not (file := folder / TOKENIZER_NAME).is_file():
        raise ValueError(f"tokenizer {name} has no {TOKENIZER_NAME}")
    return file


def check_tokenizer(file: Path, sha256: str) -> None:
    """Raise ValueError unless this is the tokenizer.json that data was tokenized by."""
    if (actual := file_sha256(file)) != sha256:
        hashes = f"its sha256 is {actual}, and the data was tokenized by {sha256}"
        raise ValueError(f"{file} is not the tokenizer of the run: {hashes}")


def read_tokenizer(file: Path) -> Tokenizer:
    """A tokenizer that takes special tokens in a text for ordinary text, and loses no text.

    Raises: ValueError if the file is no tokenizer.json, or its tokens do not give a text back.
    """
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises no other type
        raise ValueError(f"{file} is no {TOKENIZER_NAME}: {error}") from None
    if dropout := getattr(tokenizer.model, "dropout", None):
        reason = f"leaves out merges at random (dropout {dropout:g})"
        raise ValueError(f"tokenizer {file} {reason}: set its dropout to null")
    tokenizer.encode_special_tokens = True
    # transformers writes both into the file where it was once called so; every text would be cut to
    # that length, or filled up.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for text in _hard_texts(tokenizer):
        returned = _round_trip(tokenizer, text)
        # SentencePiece's may put a space before a text, or take it away.
        if {returned, f" {returned}"}.isdisjoint({text, f" {text}"}):
            raise ValueError(f"tokenizer {file} loses text: {text!r} comes back as {returned!r}")
    return tokenizer


_HARD_TEXTS = (
    "Upper and lower CASE",
    "caf\u00e9 \u00c5ngstr\u00f6m na\u00efve",
    "  two  spaces,\ttabs \n\n and line ends \r\n \t ",
    "\u2460 \ufb01ne \uff21 \u00bd x\u00b2 \u2026 \u00a0\u3000",
    "\u201cquotes\u201d \u2018\u2019 dash\u2014 \u4e2d\u6587\u65e5\u672c \u0627\u0644 \u0e01",
    "can 't do n't it 's , . ! ?",
    "12 345.67 \U0001f469\u200d\U0001f680\ufe0f",
    # Every byte of a text without control characters: ASCII, then each that begins a character of
    # two, three or four bytes, and each that may follow. A line each, as marks in a row are moved.
    "".join(map(chr, range(0x20, 0x7F))),
    "\n".join(map(chr, (*range(0x80, 0xC0), *range(0xA0, 0x800, 0x40)))),
    "\n".join(map(chr, (*range(0x800, 0xD800, 0x1000), 0xD7A3, 0xE000, 0xF8FF, 0xFFFD))),
    "\n".join(map(chr, (0x1F600, 0x20000, 0x30000, 0xE0100))),
)
"""Texts that normalizers, decoders and small vocabularies are known to change."""


def _hard_texts(tokenizer: Tokenizer) -> Iterator[str]:
    """Texts as the tokenizer may give them back: in the normal form of Unicode, NFC."""
    added = tokenizer.get_added_tokens_decoder().values()
    # Added tokens may take the spaces next to them.
    around = (f"a {token.content} b" for token in added if not token.special)
    return (unicodedata.normalize("NFC", text) for text in (*_HARD_TEXTS, *around))


def _round_trip(tokenizer: Tokenizer, text: str) -> str:
    try:
        token_ids = tokenizer.encode(text, add_special_tokens=False).ids
        returned = str(tokenizer.decode(token_ids, skip_special_tokens=False))
    except Exception as error:  # for a word without a token, say
        return f"{type(error).__name__}: {error}"
    return unicodedata.normalize("NFC", returned)


def document_begin(tokenizer: Tokenizer, file: Path, named: str) -> str:
    """The token that begins a document, NO_TOKEN for none.

    named: by the user; "" for the token that the tokenizer puts before a text, as before prompts.
    Raises: ValueError if it puts several there, or the token is none that only begins documents.
    """
    if named == NO_TOKEN:
        return named
    if named:
        return _checked(tokenizer, file, named, "--begin-token")
    encoding = tokenizer.encode("a")
    first = encoding.tokens[: encoding.special_tokens_mask.index(0)]
    if len(first) > 1:
        raise ValueError(
            f"tokenizer {file} puts {len(first)} tokens before a text ({', '.join(first)}): name "
            f"the one that begins documents with --begin-token, or {NO_TOKEN}"
        )
    return _checked(tokenizer, file, first[0], "--begin-token names another") if first else NO_TOKEN


def document_end(tokenizer: Tokenizer, file: Path, named: str) -> str:
    """The token that ends a document.

    named: by the user; "" for `eos_token` of the tokenizer_config.json next to the file.
    Raises: ValueError if that states none, or the token is none that only ends documents.
    """
    if named:
        return _checked(tokenizer, file, named, "--end-token")
    config = file.with_name(TOKENIZER_CONFIG_NAME)
    stated = json.loads(config.read_bytes()).get("eos_token") if config.is_file() else None
    token = stated["content"] if isinstance(stated, dict) else stated
    if not isinstance(token, str):
        lack = f"there is no eos_token in {config}"
        raise ValueError(f"{lack}: name the token that ends documents with --end-token")
    return _checked(tokenizer, file, token, f"eos_token of {config}; --end-token names another")


def _checked(tokenizer: Tokenizer, file: Path, token: str, origin: str) -> str:
    token_id = tokenizer.token_to_id(token)
    if token_id is None:
        raise ValueError(f"tokenizer {file} has no token {token} ({origin})")
    if token_id in tokenizer.encode(token, add_special_tokens=False).ids:
        raise ValueError(
            f"token {token} of tokenizer {file} is one that a text may hold, and must be a special "
            f"token ({origin})"
        )
    return token


def tokenizer_config(begin: str | None, end: str, *, max_length: int) -> dict[str, Any]:
    """The contents of a tokenizer_config.json for a model of documents between these tokens.

    begin: None for documents without a begin token. max_length: longest sequence in tokens that the
    model is trained on.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **({} if begin is None else {"bos_token": begin}),
        "eos_token": end,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": max_length,
    }


def template(tokenizer: Tokenizer, begin: str | None) -> TemplateProcessing:
    """The post-processor that puts `begin` before every text, and nothing else anywhere."""
    if begin is None:
        return TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    name = begin.replace("$", "").replace(":", "")  # which are signs of a template
    ids = [tokenizer.token_to_id(begin)]
    return TemplateProcessing(
        single=[name, "$A"],
        pair=[name, "$A", f"{name}:1", "$B:1"],
        special_tokens=[{"id": name, "ids": ids, "tokens": [begin]}],
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

    def __init__(self, tokenizer_file: Path, *, begin_token: str = "", end_token: str = "") -> None:
        """begin_token, end_token: names; "" as `document_begin` and `document_end` take it.

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
                    token_ids = np.array([*begin, *next(encodings).ids, self.eos_id], dtype="<u4")
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
