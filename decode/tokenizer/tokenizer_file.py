"""The content of a tokenizer.json, checked for being BPE of bytes or with byte fallback.

Everything else is refused.
"""

import hashlib
import json
from collections.abc import Mapping, Set
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from .sentence_piece import MARK, SentencePiece, merged_pairs, read_sentence_piece, steps_of

LETTER_OF: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]
"""The letter of each byte in the vocabulary of a byte-level BPE."""
_BYTE_OF = {letter: byte for byte, letter in LETTER_OF.items()}


def token_bytes(token: str) -> bytes:
    """The bytes of a vocabulary entry. Raises ValueError outside the alphabet."""
    if not _BYTE_OF.keys() >= {*token}:
        raise ValueError(f"vocabulary entry {token!r} is not written in the byte-level alphabet")
    return bytes(map(_BYTE_OF.__getitem__, token))


OTHER_MODELS = {
    "Unigram": "Unigram (T5, ALBERT, XLM-R)",
    "WordPiece": "WordPiece (BERT)",
    "WordLevel": "WordLevel (words alone)",
}
"""Names of the models of the library, with those who use them."""


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """The parts of a BPE tokenizer that decide how text becomes tokens."""

    token_bytes: dict[int, bytes]
    """Bytes of every token that text can become, added tokens included, special tokens left out."""
    merges: list[tuple[int, int, int]]
    """(left, right, merged) token ids, most urgent first."""
    added_token_ids: frozenset[int]
    """Added tokens that are text (special=false)."""
    raw_literals: tuple[str, ...]
    """Texts of those that are cut out before the rest of a text is normalized."""
    unwritten: tuple[bytes, ...]
    """Texts of added tokens that are refused in a text, as what lies around them decides their
    bytes."""
    sentence_piece: SentencePiece | None
    """The steps that byte-level BPE does not have; None for that."""
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
    """Read a tokenizer.

    Raises ValueError, in one line, for one that is not byte-level BPE or BPE with byte fallback.
    """
    text = tokenizer.to_str()
    content = json.loads(text)
    model, added = content["model"], content["added_tokens"]
    if model["type"] != "BPE":
        name = OTHER_MODELS.get(model["type"], model["type"])
        raise ValueError(
            f"byte level needs a BPE tokenizer, of bytes or with byte fallback, got {name}: it "
            "decodes only with a safe model that has the same tokenizer"
        )
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            raise ValueError(f"byte level does not support BPE with {option}={model[option]!r}")
    piece = read_sentence_piece(content)
    if piece is None:
        _refuse_others(content)
    vocab, special = model["vocab"], {entry["id"] for entry in added if entry["special"]}
    literals, unwritten = _literals(tokenizer, added), dict[int, str]()
    if piece is not None:
        literals, unwritten = _of_sentence_piece(piece, added, literals)
    raw = {entry["id"] for entry in added if not entry["normalized"]} & literals.keys()
    _refuse_added(added, {} if piece is not None else vocab, literals, raw)
    # Merges may make an unwritten one where it is not cut out: "ab" is sought as " ab" perhaps.
    base = _base_bytes(vocab, special | literals.keys(), piece)
    added_bytes = {id: literal.encode() for id, literal in literals.items()}
    return TokenizerFile(
        token_bytes={**base, **added_bytes},
        merges=[
            (vocab[left], vocab[right], vocab[left + right]) for left, right in merged_pairs(model)
        ],
        added_token_ids=frozenset(added_bytes),
        raw_literals=tuple(literals[id] for id in raw),
        unwritten=tuple(literal.encode() for literal in unwritten.values()),
        sentence_piece=piece,
        special_token_ids=frozenset(special),
        leading_token_ids=_leading_token_ids(tokenizer),
        has_whole_pretokens=bool(model.get("ignore_merges")),
        vocab_size=1 + max([*vocab.values(), *(entry["id"] for entry in added)]),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )


def _refuse_others(content: Mapping[str, Any]) -> None:
    """Raise ValueError for what byte level cannot read of a byte-level BPE."""
    cuts = steps_of(content["pre_tokenizer"], "pretokenizers")
    normalizers = steps_of(content["normalizer"], "normalizers")
    if not (byte_level := [step for step in cuts if step["type"] == "ByteLevel"]):
        raise ValueError("byte level needs a tokenizer with a ByteLevel pre-tokenizer")
    if any(step["add_prefix_space"] for step in byte_level):
        raise ValueError("byte level does not support ByteLevel with add_prefix_space=true")
    if other := [step["type"] for step in normalizers if step["type"] != "NFC"]:
        raise ValueError(f"byte level supports no normalizer but NFC, got {other[0]}")


def _base_bytes(
    vocab: Mapping[str, int], others: Set[int], piece: SentencePiece | None
) -> dict[int, bytes]:
    """Bytes of the ordinary tokens, those that no text becomes left out."""
    ordinary = ((id, name) for name, id in vocab.items() if id not in others)
    if piece is None:
        return {id: token_bytes(name) for id, name in ordinary}
    texts = ((id, piece.token_bytes(name, id)) for id, name in ordinary)
    return {id: text for id, text in texts if text is not None}


def _of_sentence_piece(
    piece: SentencePiece, added: list[Mapping[str, Any]], literals: Mapping[int, str]
) -> tuple[dict[int, str], dict[int, str]]:
    """The literals of a SentencePiece tokenizer as a text holds them, and the unwritten ones.

    Where the tokenizer puts a space first it does so again after an added token, so those are in no
    text; nor are those that take the space next to them. Runs of U+2581 are ordinary tokens, as are
    all with U+2581 that are sought before it is written.
    """
    takes_more = {
        entry["id"] for entry in added if entry["lstrip"] or entry["rstrip"] or entry["single_word"]
    }
    raw = {entry["id"] for entry in added if not entry["normalized"]}
    texts = {
        id: literal.replace(MARK, " ")
        for id, literal in literals.items()
        if MARK not in literal or (piece.normalizer_marks and id not in raw)
    }
    if piece.puts_space:
        return {}, texts
    return (
        {id: text for id, text in texts.items() if id not in takes_more},
        {id: text for id, text in texts.items() if id in takes_more},
    )


def _literals(tokenizer: Tokenizer, added: list[Mapping[str, Any]]) -> dict[int, str]:
    """Literals by which the added tokens that are text are matched, in the text that is searched:
    normalized=true seeks in the normalized text, and normalizes the content too."""
    literals = {entry["id"]: entry["content"] for entry in added if not entry["special"]}
    if (normalizer := tokenizer.normalizer) is not None:
        normalized = {entry["id"] for entry in added if entry["normalized"]}
        for id in literals.keys() & normalized:
            literals[id] = normalizer.normalize_str(literals[id])
    return literals


def _refuse_added(
    added: list[Mapping[str, Any]],
    vocab: Mapping[str, int],
    literals: Mapping[int, str],
    raw: Set[int],
) -> None:
    """Raise ValueError for added tokens that are not matched as `AddedTokens` matches literals."""
    for entry in added:
        content, options = entry["content"], ("single_word", "lstrip", "rstrip")
        if option := next((o for o in options if entry[o] and entry["id"] in literals), ""):
            raise ValueError(f"added token {content!r} has unsupported {option}=true")
        # The library takes its id for both, so merges make it of text that is not the literal.
        is_made = content in vocab and _BYTE_OF.keys() >= {*content}
        if is_made and (entry["single_word"] or not content.isascii()):
            made = token_bytes(content)
            raise ValueError(f"added token {content!r} is also an ordinary one, of bytes {made!r}")
    # Those of raw text are sought first, the others in what these leave over.
    for one, other in combinations(literals, 2):
        first, second = literals[one], literals[other]
        if first == second or ((one in raw) != (other in raw) and _overlap(first, second)):
            raise ValueError(
                f"added tokens {first!r} and {second!r} overlap, and which one is matched depends "
                "on more than their texts (normalized=true and false, or twice one text)"
            )


def _overlap(first: str, second: str) -> bool:
    """True if both can occur in a text so that they have a character in common."""
    ends = range(1, min(len(first), len(second)))
    is_cut = any(first[-n:] == second[:n] or second[-n:] == first[:n] for n in ends)
    return is_cut or first in second or second in first


def _leading_token_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    bare, full = tokenizer.encode("a", add_special_tokens=False).ids, tokenizer.encode("a").ids
    num_leading = len(full) - len(bare)
    if full[num_leading:] != bare:
        raise ValueError("byte level does not support tokenizers that put tokens after a text")
    return tuple(full[:num_leading])
