r"""The automaton that cuts as a tokenizer's pre-tokenizer does, step by step.

A step is a regex (regex.py), or is read as one: ByteLevel with GPT-2's, the text of a Split, Digits
and Punctuation. It cuts each pretoken of the step before as if that were a text (`cut_again`).
"""

import json
import random
from collections.abc import Mapping
from functools import reduce
from itertools import pairwise, product
from typing import Any

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers

from .pretokenizer import (
    CharacterClasses,
    PretokenizerAutomaton,
    joint_classes,
    members,
    smallest_automaton,
)
from .regex import covers_texts, known_characters, regex_automaton
from .sentence_piece import steps_of

BYTE_LEVEL = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The regex of `ByteLevel`, GPT-2's."""
WHOLE_TEXT = r"[\s\S]+"
NUM_STRINGS = 800
MAX_CHARACTERS = 12
# White space and line ends, contraction letters in both cases, digits, symbols, and scripts with
# letters of every category, marks, joined emoji and characters with unusual case foldings.
ALPHABET = (
    *"    \t\n\n\r\u00a0\u2028\u3000''''sStTrReEvVlLmMdDxXaA0099.!/-_",
    *"\u4e2d\u65e5\u00e9\u0301\u017f\u212a\u02b0\u01c5\u00df\u00bd\u0663\u0628\u0130\ufb06",
    *"\U0001f600\u200d\ufe0f\u2019\x1c\x85\u180e\u0e33\u1100\u3042\u30fb\u3002\u060c\uff01\x01$(",
)
MAX_SHOWN = 60
Step = Mapping[str, Any]


def detect_pretokenizer(tokenizer: Tokenizer) -> PretokenizerAutomaton:
    """The automaton that cuts as `tokenizer` does.

    Raises ValueError, in one line, where a step is none of those above or has a regex that is not
    known, where the steps together need too many states, and where the automaton does not cut a
    thousand strings from a fixed seed as the tokenizer does.
    """
    steps = steps_of(json.loads(tokenizer.pre_tokenizer.__getstate__()), "pretokenizers")
    cut = tokenizer.pre_tokenizer.pre_tokenize_str
    try:
        automaton = reduce(cut_again, _stages(steps))
        for text in _hard_strings(automaton.classes):
            expected = [end - start for _, (start, end) in cut(text)]
            if expected != [*map(len, automaton.pretokens(text))]:
                raise ValueError("it does more than to cut out what its regexes match")
    except ValueError as error:
        raise ValueError(f"unsupported pre-tokenizer: {error}") from None
    return automaton


def _stages(steps: list[Step]) -> list[PretokenizerAutomaton]:
    """The automata of the steps that cut, all but ByteLevel without regex, or of the whole text."""
    for before, step in pairwise(steps):
        if before["type"] == "ByteLevel":
            raise ValueError(
                f"{_shown(step)} after ByteLevel cuts the bytes of characters "
                "(Falcon's Digits take 0xbc for a number), byte level needs whole characters there"
            )
    cutting = [step for step in steps if step["type"] != "ByteLevel" or step["use_regex"]]
    return [_stage(step) for step in cutting] or [regex_automaton(WHOLE_TEXT)]


def _stage(step: Step) -> PretokenizerAutomaton:
    try:
        regex, behavior = _regex(step), step.get("behavior", "Isolated")
        # Nothing follows this group, so each of its rounds is the match that it is alone.
        regex = f"(?:{regex})+" if behavior == "Contiguous" else regex
        # Others change what lies between matches, but removed ones unless inverted.
        is_cut = behavior in ("Isolated", "Contiguous")
        is_removed = behavior == "Removed" and not step["invert"]
        if is_removed or not (is_cut or covers_texts(regex)):
            raise ValueError(f"byte level knows Isolated and Contiguous, not {behavior}, of this")
        return regex_automaton(regex)
    except ValueError as error:
        raise ValueError(f"{_shown(step)}: {error}") from None


def _regex(step: Step) -> str:
    """The regex of what a step cuts out."""
    match step["type"]:
        case "ByteLevel":
            return BYTE_LEVEL
        case "Split":
            pattern = step["pattern"]
            is_regex = "Regex" in pattern
            return str(pattern["Regex"]) if is_regex else _characters(pattern["String"])
        case "Digits":
            digits = _cut_out(pre_tokenizers.Digits(individual_digits=False))
            return digits if step["individual_digits"] else f"{digits}+"
        case "Punctuation":
            return _cut_out(pre_tokenizers.Punctuation("contiguous"))
    raise ValueError("byte level needs Split, Digits or Punctuation")


def _characters(text: str) -> str:
    """Characters as a regex writes any of them."""
    return "".join(f"\\x{{{ord(character):x}}}" for character in text)


def _cut_out(contiguous: pre_tokenizers.PreTokenizer) -> str:
    """The set of characters that contiguous Digits or Punctuation cut out, all assigned."""
    # The first character is U+0000, which neither cuts out: every other piece is cut out.
    pieces = contiguous.pre_tokenize_str(known_characters())[1::2]
    return f"[{_characters(''.join(piece for piece, _ in pieces))}]"


def _hard_strings(classes: CharacterClasses) -> list[str]:
    """Strings over ALPHABET and three characters of each class, and unusual case foldings."""
    source = random.Random(0)
    kinds = [np.flatnonzero(classes.of == kind).tolist() for kind in range(1, classes.number)]
    letters = [*ALPHABET, *(chr(source.choice(kind)) for kind in kinds for _ in range(3))]
    lengths = (source.randint(1, MAX_CHARACTERS) for _ in range(NUM_STRINGS))
    drawn = ["".join(source.choices(letters, k=length)) for length in lengths]
    # Regexes that ignore case take these for several characters: (?i:fi) matches a ligature.
    folded = (letter for letter in map(chr, range(0x10000)) if len(letter.casefold()) > 1)
    folds = [f"a{text}b" for letter in folded for text in (letter, letter.casefold())]
    return [*drawn, *folds, "1234567890123"]


def _shown(step: Step) -> str:
    """A step's type, and the beginning of its pattern."""
    pattern = next(iter(step.get("pattern", {}).values()), None)
    if pattern is None:
        return str(step["type"])
    shown = pattern if len(pattern) <= MAX_SHOWN else f"{pattern[:MAX_SHOWN]}..."
    return f"{step['type']} {shown!r}"


State = tuple[int, int]


def cut_again(first: PretokenizerAutomaton, second: PretokenizerAutomaton) -> PretokenizerAutomaton:
    """Each pretoken of `first` cut by `second`, which begins anew in it and must end with it.

    Its states are pairs. Raises ValueError where too many of them or of classes are needed.
    """
    classes, parts = joint_classes((first.classes.of, second.classes.of))

    def step(state: State, kind: int) -> tuple[list[State], list[State]]:
        # 1. Where both may go on: by joining or splitting, and the second one by beginning too.
        one, two = parts[kind]
        joined = members(first.joins[one][state[0]])
        split = members(first.splits[one][state[0]])
        within = members(second.joins[two][state[1]])
        cut = members(second.splits[two][state[1]])
        begun = members(second.splits[two][0]) if second.accepting >> state[1] & 1 else []
        # 2. A character joins a pretoken that it joins in both.
        return [*product(joined, within)], [*product(joined, cut), *product(split, begun)]

    def may_end(state: State) -> bool:
        return bool(first.accepting >> state[0] & second.accepting >> state[1] & 1)

    return smallest_automaton(classes, (0, 0), step, may_end)
