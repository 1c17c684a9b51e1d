"""Which tokens two tokenizers have in common, and whether a pair can be decoded in them."""

import itertools
import json
from dataclasses import dataclass
from operator import eq
from typing import Any

from transformers import PreTrainedTokenizerFast

SHOWN, SHOWN_BEFORE = 80, 20
"""Most characters of a value in a log line, and those of them before the first that differs."""


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
    """Whether both know the same ids, without gaps: nothing is left out."""
    difference: str = ""
    """The first difference in what plain text becomes, "" where tokens can be shared."""
    harmless_difference: str = ""
    """The first difference that changes no plain text, of special tokens above all, "" for none."""


def shared_tokens(
    safe: PreTrainedTokenizerFast, risky: PreTrainedTokenizerFast | None
) -> SharedTokens:
    """What the tokenizers of a safe and a risky model have in common; risky: None for the same."""
    ours = _Tokens(safe)
    theirs = ours if risky is None else _Tokens(risky)
    shared = ours.texts.keys() & theirs.texts.keys()
    vocab_size = 1 + max(shared, default=-1)
    plain, special = _token_differences(ours, theirs)
    return SharedTokens(
        vocab_size=vocab_size,
        banned_token_ids=tuple(sorted(set(range(vocab_size)) - shared)),
        is_whole=len(shared) == vocab_size == len(ours.texts) == len(theirs.texts),
        difference=_step_difference(ours.steps, theirs.steps)
        or _unknown_example(ours, theirs)
        or plain
        or _merge_difference(ours, theirs),
        harmless_difference=special or _step_difference(ours.settings, theirs.settings),
    )


class _Tokens:
    """A tokenizer, as far as it decides what a text becomes."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        model, added = content["model"], content["added_tokens"]
        vocab, self.merges = model.pop("vocab"), model.pop("merges", [])
        before = {name: content[name] for name in ("normalizer", "pre_tokenizer")}
        self.settings = before | model
        self.steps = _without_offsets(before) | _model_steps(model, vocab)
        self.added = {entry["id"] for entry in added}
        self.special = {entry["id"] for entry in added if entry["special"]}
        self.texts = _texts(vocab) | {entry["id"]: entry["content"] for entry in added}
        self.example = tokenizer("a")["input_ids"]


def _without_offsets(step: Any) -> Any:
    """Steps of a tokenizer without `trim_offsets`, which moves offsets and no token."""
    if isinstance(step, list):
        return [_without_offsets(part) for part in step]
    if not isinstance(step, dict):
        return step
    return {name: _without_offsets(v) for name, v in step.items() if name != "trim_offsets"}


def _model_steps(model: dict[str, Any], vocab: Any) -> dict[str, Any]:
    """Beside tokens and merges: empty values are all None, and the unknown token is an id."""
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
    """In whatever is done to a text beside looking up tokens and merging them; "" for nothing."""
    for name in sorted(safe.keys() | risky.keys()):
        if safe.get(name) != risky.get(name):
            return _shown(name, safe.get(name), risky.get(name))
    return ""


def _unknown_example(safe: _Tokens, risky: _Tokens) -> str:
    """A begin of text, say, with which every prompt would hold a banned token."""
    unknown = [token_id for token_id in safe.example if token_id not in risky.texts]
    return f"token {unknown[0]} beside every text, which the risky one lacks" if unknown else ""


def _token_differences(safe: _Tokens, risky: _Tokens) -> tuple[str, str]:
    """The first of a token that plain text can become, and of another one; "" for none."""
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
    """Both values as JSON, long ones from shortly before they part."""
    texts = [json.dumps(value) for value in (safe, risky)]
    num_equal = len(list(itertools.takewhile(bool, map(eq, *texts))))
    start = 0 if max(map(len, texts)) <= SHOWN else max(0, num_equal - SHOWN_BEFORE)
    parts = [_excerpt(text, start) for text in texts]
    return f"{name} {parts[0]} and {parts[1]}"


def _excerpt(text: str, start: int) -> str:
    end = start + SHOWN
    return ("..." if start else "") + text[start:end] + ("..." if end < len(text) else "")
