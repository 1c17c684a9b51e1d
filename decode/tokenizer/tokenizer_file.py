"""The content of a tokenizer.json, checked for being byte-level BPE; everything else is refused."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

PRINTABLE_BYTES = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def byte_characters() -> list[str]:
    """The character of each byte 0..255: itself where Latin-1 prints it, else chr(256 + n).

    Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", encoder.
    """
    characters = {byte: chr(byte) for byte in PRINTABLE_BYTES}
    for byte in range(256):
        characters.setdefault(byte, chr(256 + len(characters) - len(PRINTABLE_BYTES)))
    return [characters[byte] for byte in range(256)]


_BYTES = str.maketrans({character: chr(byte) for byte, character in enumerate(byte_characters())})
_ALPHABET = frozenset(byte_characters())


def token_bytes(token: str) -> bytes:
    """The bytes of a vocabulary entry. Raises ValueError outside the alphabet."""
    if not _ALPHABET.issuperset(token):
        raise ValueError(f"vocabulary entry {token!r} is not written in the byte-level alphabet")
    return token.translate(_BYTES).encode("latin-1")


SENTENCE_PIECE_STEPS = ("Prepend", "Replace", "Metaspace", "Precompiled")


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """The parts of a byte-level BPE tokenizer that decide how text becomes tokens."""

    token_bytes: dict[int, bytes]
    """Bytes of every token that text can become, added tokens included, special tokens left out."""
    merges: list[tuple[int, int, int]]
    """(left, right, merged) token ids, most urgent first."""
    added_token_ids: frozenset[int]
    """Added tokens that stand for text (special=false)."""
    special_token_ids: frozenset[int]
    """Tokens without bytes."""
    leading_token_ids: tuple[int, ...]
    """Tokens that the tokenizer puts before a text."""
    has_whole_pretokens: bool
    """ignore_merges: a pretoken that is a vocabulary entry becomes it whatever the merges say."""
    vocab_size: int
    sha256: str
    """Hash of the whole tokenizer, as the library writes it."""


def read_tokenizer(tokenizer: Tokenizer) -> TokenizerFile:
    """Read a tokenizer. Raises ValueError, in one line, for one that is not byte-level BPE."""
    text = tokenizer.to_str()
    content = json.loads(text)
    model, added = content["model"], content["added_tokens"]
    _refuse_others(content)
    vocab, added_ids = model["vocab"], {entry["id"] for entry in added}
    base = {id: token_bytes(text) for text, id in vocab.items() if id not in added_ids}
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
    added_bytes = _added_bytes(added)
    return TokenizerFile(
        token_bytes={**base, **added_bytes},
        merges=[(vocab[left], vocab[right], vocab[left + right]) for left, right in pairs],
        added_token_ids=frozenset(added_bytes),
        special_token_ids=frozenset(entry["id"] for entry in added if entry["special"]),
        leading_token_ids=_leading_token_ids(tokenizer),
        has_whole_pretokens=bool(model.get("ignore_merges")),
        vocab_size=1 + max([*base, *added_ids]),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )


def steps_of(part: Mapping[str, Any] | None, members: str) -> list[Mapping[str, Any]]:
    """The parts of a Sequence (under the name `members`), or the one part itself."""
    if part is None:
        return []
    return list(part[members]) if part["type"] == "Sequence" else [part]


def _refuse_others(content: Mapping[str, Any]) -> None:
    """Raise ValueError for what byte level cannot read."""
    model = content["model"]
    if model["type"] != "BPE":
        raise ValueError(f"byte level needs a byte-level BPE tokenizer, got {model['type']}")
    if model.get("byte_fallback"):
        raise ValueError("byte level does not support byte-fallback (SentencePiece) tokenizers")
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise ValueError(f"byte level does not support BPE with {option}={model[option]!r}")
    cuts = steps_of(content["pre_tokenizer"], "pretokenizers")
    normalizers = steps_of(content["normalizer"], "normalizers")
    for step in (*cuts, *normalizers):
        if step["type"] in SENTENCE_PIECE_STEPS:
            raise ValueError(
                f"byte level does not support SentencePiece tokenizers ({step['type']})"
            )
    byte_level = [step for step in cuts if step["type"] == "ByteLevel"]
    if not byte_level:
        raise ValueError("byte level needs a tokenizer with a ByteLevel pre-tokenizer")
    if any(step["add_prefix_space"] for step in byte_level):
        raise ValueError("byte level does not support ByteLevel with add_prefix_space=true")
    if other := [step["type"] for step in normalizers if step["type"] != "NFC"]:
        raise ValueError(f"byte level supports no normalizer but NFC, got {other[0]}")


def _added_bytes(added: list[Mapping[str, Any]]) -> dict[int, bytes]:
    texts = [entry for entry in added if not entry["special"]]
    for entry in texts:
        for option in ("single_word", "lstrip", "rstrip"):
            if entry[option]:
                raise ValueError(f"added token {entry['content']!r} has unsupported {option}=true")
    return {entry["id"]: entry["content"].encode() for entry in texts}


def _leading_token_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    full = tokenizer.encode("a").ids
    num_leading = len(full) - len(bare)
    if full[num_leading:] != bare:
        raise ValueError("byte level does not support tokenizers that put tokens after a text")
    return tuple(full[:num_leading])
