"""SentencePiece-style BPE with byte fallback: Llama 2, Mistral 7B, Gemma, Phi-3, Yi, TinyLlama.

Such a tokenizer writes each space as U+2581 and reads characters: one that has a token is that
token, any other is the tokens of its UTF-8 bytes. Merges go over a whole text, or over its words.
Some put a space before every text. Source: the `tokenizers` library, whose file is what counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .pretokenizer import NUM_CODE_POINTS, SURROGATES, CharacterClasses, PretokenizerAutomaton

MARK = "\u2581"
"""The character that a space is written as."""
BYTE_NAMES = [f"<0x{byte:02X}>" for byte in range(256)]
STEPS = ("Prepend", "Replace", "Metaspace")
"""Normalizers and pretokenizers by which such a tokenizer is known, next to byte_fallback."""
FirstSpace = Literal["never", "always", "unless_there"]


@dataclass(frozen=True, slots=True)
class SentencePiece:
    """The steps of such a tokenizer that byte-level BPE does not have."""

    characters: Mapping[str, int]
    """Tokens of single characters, which are never spelled in bytes."""
    byte_tokens: tuple[int, ...]
    """(256,) the token of each byte."""
    first_space: FirstSpace
    """Whether the tokens of a text spell a space before it."""
    cuts_words: bool
    """Whether a word begins at each space; else a whole text is one word."""
    normalizer_marks: bool
    """Whether spaces are marked before added tokens with normalized=true are sought: Metaspace
    marks them after that."""

    def token_bytes(self, name: str, token: int) -> bytes | None:
        """The bytes of a vocabulary entry; None for one that no text becomes."""
        if token in self.byte_tokens:
            return bytes([self.byte_tokens.index(token)])
        return None if " " in name else name.replace(MARK, " ").encode()

    @property
    def puts_space(self) -> bool:
        """Whether tokens spell a space that their text does not have."""
        return self.first_space != "never"

    def spelled(self, text: bytes) -> bytes:
        """The bytes that the tokens of a text spell."""
        has_space = self.first_space == "unless_there" and text.startswith(b" ")
        return b" " + text if self.puts_space and not has_space else text

    def automaton(self) -> PretokenizerAutomaton:
        """The cuts: none, or one before each space. U+2581 is in no text, as it would be a
        space."""
        of = np.ones(NUM_CODE_POINTS, np.int64)
        of[SURROGATES.start : SURROGATES.stop] = 0
        of[ord(MARK)] = 0
        joins, splits = [[0, 0], [0, 2]], [[0, 0], [2, 0]]
        if self.cuts_words:
            of[ord(" ")] = 2
            joins, splits = [*joins, [0, 0]], [*splits, [2, 2]]
        return PretokenizerAutomaton(CharacterClasses(of), joins, splits, accepting=3)

    def spelled_classes(self, automaton: PretokenizerAutomaton) -> CharacterClasses:
        """The automaton's classes of the characters that bytes spell: those without a token."""
        of = automaton.classes.of.copy()
        of[[ord(character) for character in self.characters]] = 0
        return CharacterClasses(of)


def read_sentence_piece(content: Mapping[str, Any]) -> SentencePiece | None:
    """Read these steps from a tokenizer.json; None for one of another kind.

    Raises ValueError, in one line, for one that byte level cannot read.
    """
    model, normalizers = content["model"], steps_of(content["normalizer"], "normalizers")
    cuts = steps_of(content["pre_tokenizer"], "pretokenizers")
    named = [step["type"] for step in (*normalizers, *cuts) if step["type"] in STEPS]
    if not model.get("byte_fallback") and not named:
        return None
    vocab = model["vocab"]
    if not model.get("byte_fallback") or not vocab.keys() >= set(BYTE_NAMES):
        raise ValueError(
            "byte level needs a SentencePiece tokenizer whose byte_fallback has tokens of all 256 "
            f"bytes, got {named[0] if named else 'byte_fallback'} without"
        )
    if model.get("ignore_merges"):
        raise ValueError("byte level does not support SentencePiece with ignore_merges=true")
    bytes_ = frozenset(BYTE_NAMES)
    if touched := [pair for pair in merged_pairs(model) if bytes_ & {*pair, "".join(pair)}]:
        raise ValueError(f"byte level does not support merges of single bytes, got {touched[0]}")
    if added := bytes_ & {entry["content"] for entry in content["added_tokens"]}:
        raise ValueError(f"byte level does not support {min(added)} as an added token")
    return SentencePiece(
        characters={name.replace(MARK, " "): id for name, id in vocab.items() if len(name) == 1},
        byte_tokens=tuple(vocab[name] for name in BYTE_NAMES),
        first_space=_first_space(normalizers, cuts),
        cuts_words=any(step["split"] for step in cuts if step["type"] == "Metaspace"),
        normalizer_marks=any(step["type"] == "Replace" for step in normalizers),
    )


def steps_of(part: Mapping[str, Any] | None, members: str) -> list[Mapping[str, Any]]:
    """The parts of a Sequence (under the name `members`), or the one part itself."""
    if part is None:
        return []
    return list(part[members]) if part["type"] == "Sequence" else [part]


def merged_pairs(model: Mapping[str, Any]) -> list[list[str]]:
    """Names of the halves of each merge."""
    return [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]


def _first_space(normalizers: list[Mapping[str, Any]], cuts: list[Mapping[str, Any]]) -> FirstSpace:
    """Read the steps, in their order. ValueError for one that does more than mark spaces."""
    first: FirstSpace = "never"
    marks = False
    for step in (*normalizers, *cuts):
        match step:
            case {"type": "Prepend", "prepend": "\u2581"} if not marks:
                first = "always"
            case {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}:
                marks = True
            case {"type": "Metaspace", "replacement": "\u2581"} if first != "always":
                first = "never" if step["prepend_scheme"] == "never" else "unless_there"
                marks = True
            case {"type": "Split", "pattern": {"String": " "}} if marks:
                pass  # no space is left to be cut at
            case _:
                raise ValueError(
                    f"byte level does not support the step {step['type']} of a SentencePiece "
                    "tokenizer: it knows Prepend and Replace of U+2581, and Metaspace"
                )
    if not marks:
        raise ValueError("byte level needs a SentencePiece tokenizer that writes spaces as U+2581")
    return first
