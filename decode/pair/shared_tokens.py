"""The tokens that two tokenizers have in common, and whether a pair can be decoded in them."""

import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast

_STEPS = {"normalizer": "normalizers", "pre_tokenizer": "pre-tokenizers"}
"""Steps before the tokens of a text are looked up, and their names in messages."""
SHOWN = 80
"""Most characters of a value in a log line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedTokens:
    """The ids that both tokenizers of a pair know: the vocabulary of the pair at token level.

    Texts are read by the safe tokenizer. So plain text must become the same ids in both: the
    ordinary tokens, the merges and the steps before them have to agree, a special token only in its
    id. An id that one tokenizer lacks is left out for both models.
    """

    vocab_size: int
    """1 + the largest id that both know."""
    banned_token_ids: tuple[int, ...]
    """Ids below that which one of them lacks, ascending."""
    is_whole: bool
    """True if both know the same ids, without gaps, and both models have rows for them."""
    difference: str = ""
    """The first difference in what plain text becomes, "" where tokens can be shared."""
    harmless_difference: str = ""
    """The first difference that changes no plain text, of special tokens above all, "" for none."""


def shared_tokens(
    safe: PreTrainedTokenizerFast,
    risky: PreTrainedTokenizerFast | None,
    num_rows: Sequence[int] = (sys.maxsize, sys.maxsize),
) -> SharedTokens:
    """Compare the tokenizers of a safe and a risky model.

    risky: None for the same one. num_rows: token ids that each model predicts, from 0 on; to a
    model that has no row for a special token its tokenizer lacks that token.
    """
    ours = _Tokens(safe, num_rows[0])
    is_same = risky is None and num_rows[0] == num_rows[1]
    theirs = ours if is_same else _Tokens(risky or safe, num_rows[1])
    shared = ours.texts.keys() & theirs.texts.keys()
    vocab_size = 1 + max(shared, default=-1)
    plain, special = _token_differences(ours, theirs)
    return SharedTokens(
        vocab_size=vocab_size,
        banned_token_ids=tuple(sorted(set(range(vocab_size)) - shared)),
        is_whole=len(shared) == vocab_size == ours.num_tokens == theirs.num_tokens,
        difference=_step_difference(ours.steps, theirs.steps)
        or _unknown_example(ours, theirs)
        or plain
        or _merge_difference(ours, theirs),
        harmless_difference=special or _step_difference(ours.settings, theirs.settings),
    )


def check_steady(name: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """Raise ValueError, in one line, for a tokenizer by which equal texts are not equal tokens."""
    if dropout := getattr(tokenizer.backend_tokenizer.model, "dropout", None):
        raise ValueError(
            f"the {name} model's tokenizer leaves out merges at random (dropout={dropout:g}), so "
            "that equal prompts are other tokens each time: set its dropout to null"
        )


def token_counts(tokenizer: PreTrainedTokenizerFast) -> tuple[int, int]:
    """1 + the largest id of a token that plain text can become, and 1 + the largest of all.

    Ids may have gaps, so their number is not the largest one.
    """
    ids = set(tokenizer.get_vocab().values())
    special = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    return 1 + max(ids - special, default=-1), 1 + max(ids)


class _Tokens:
    """A tokenizer, as far as it decides what a text becomes."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, num_rows: int) -> None:
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        model, added = content["model"], content["added_tokens"]
        vocab, self.merges = model.pop("vocab"), model.pop("merges", [])
        before = {name: content[name] for name in _STEPS}
        self.settings = before | model
        self.steps = _without_offsets(before) | _model_steps(model, vocab)
        self.added = {entry["id"] for entry in added}
        self.special = {entry["id"] for entry in added if entry["special"]}
        texts = _texts(vocab) | {entry["id"]: entry["content"] for entry in added}
        self.num_tokens = len(texts)
        without_row = {token_id for token_id in self.special if token_id >= num_rows}
        self.texts = {token_id: texts[token_id] for token_id in texts.keys() - without_row}
        self.example = tokenizer("a")["input_ids"]


def _without_offsets(step: Any) -> Any:
    """Steps of a tokenizer without `trim_offsets`, which moves offsets and no token."""
    if isinstance(step, list):
        return [_without_offsets(part) for part in step]
    if not isinstance(step, dict):
        return step
    return {name: _without_offsets(v) for name, v in step.items() if name != "trim_offsets"}


def _model_steps(model: dict[str, Any], vocab: Any) -> dict[str, Any]:
    """Other settings: empty values are all None, and the unknown token is an id."""
    settings = {name: value or None for name, value in model.items()}
    if isinstance(vocab, dict):
        settings["unk_token"] = vocab.get(model.get("unk_token"))
    else:
        settings["scores"] = [score for _, score in vocab]  # of Unigram
    return settings


def _texts(vocab: Any) -> dict[int, str]:
    if isinstance(vocab, dict):
        return {token_id: text for text, token_id in vocab.items()}
    return {token_id: text for token_id, (text, _) in enumerate(vocab)}


def _step_difference(safe: dict[str, Any], risky: dict[str, Any]) -> str:
    """The first difference in other steps than looking up tokens and merging them; "" for none."""
    for name in sorted(safe.keys() | risky.keys()):
        if safe.get(name) != risky.get(name):
            if name in _STEPS:
                return f"their {_STEPS[name]} differ"  # two regexes in one line are unreadable
            return _shown(name, safe.get(name), risky.get(name))
    return ""


def _unknown_example(safe: _Tokens, risky: _Tokens) -> str:
    """A begin of text, say, with which every prompt would hold a banned token."""
    for name, tokens in {"safe": safe, "risky": risky}.items():
        if unknown := [token_id for token_id in safe.example if token_id not in tokens.texts]:
            return f"token {unknown[0]} with every text, which the {name} one lacks"
    return ""


def _token_differences(safe: _Tokens, risky: _Tokens) -> tuple[str, str]:
    """The first difference in tokens of plain text, and in other ones; "" for none."""
    first: dict[bool, str] = {}
    for token_id in sorted(safe.texts.keys() | risky.texts.keys()):
        texts = safe.texts.get(token_id), risky.texts.get(token_id)
        if texts[0] != texts[1]:
            # The safe tokenizer reads texts: an added token of the other one alone is never met.
            is_special = (texts[0] is None or token_id in safe.special) and (
                texts[1] is None or token_id in risky.added
            )
            first.setdefault(is_special, _shown(f"token {token_id}", *texts))
    return first.get(False, ""), first.get(True, "")


def _merge_difference(safe: _Tokens, risky: _Tokens) -> str:
    for rank, merges in enumerate(itertools.zip_longest(safe.merges, risky.merges)):
        if merges[0] != merges[1]:
            return _shown(f"merge {rank}", *merges)
    return ""


def _shown(name: str, safe: Any, risky: Any) -> str:
    return f"{name} {json.dumps(safe):.{SHOWN}} and {json.dumps(risky):.{SHOWN}}"
