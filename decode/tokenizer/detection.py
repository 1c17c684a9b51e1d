"""Which automaton cuts as a tokenizer's pre-tokenizer does, found step by step."""

import json
import random
import re
from collections.abc import Mapping
from functools import lru_cache, reduce
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

from .families import FAMILIES, family
from .pretokenizer import PretokenizerAutomaton
from .sequences import cut_again, regex_set, runs, step_set, trailing_white_space
from .tokenizer_file import steps_of

NUM_STRINGS = 600
MAX_CHARACTERS = 12
# White space and line ends, contraction letters in both cases, digits, symbols, and scripts with
# letters of every category, marks, joined emoji and characters with unusual case foldings.
ALPHABET = (
    *"    \t\n\n\r\u00a0\u2028\u3000''''sStTrReEvVlLmMdDxXaA0099.!/-_",
    *"\u4e2d\u65e5\u00e9\u0301\u017f\u212a\u02b0\u01c5\u00df\u00bd\u0663\u0628\u0130\ufb06",
    *"\U0001f600\u200d\ufe0f\u2019\x1c\x85\u180e\u0e33\u1100\u3042\u30fb\u3002\u060c\uff01\x01$(",
)
RUN = re.compile(
    r"(?:(?P<lead> |\\s)\?)?(?P<set>\\p\{\w+\}|\[(?:\\.|[^][\\]|\[(?:\\.|[^][\\])*\])*\])"
    r"(?P<count>\+|\{1,(?P<longest>[1-9])\})?",
    re.DOTALL,
)
"""A set of characters: one of them, up to some or any number, perhaps with a white space before."""
MAX_SHOWN = 60
Step = Mapping[str, Any]


def detect_pretokenizer(tokenizer: Tokenizer) -> PretokenizerAutomaton:
    """The automaton that cuts as `tokenizer` does, made once for each pre-tokenizer.

    Raises ValueError, in one line, where a step is none of those of families.py and sequences.py,
    where the steps together need too many states, and where the automaton does not cut a few
    hundred strings from a fixed seed as the tokenizer does.
    """
    return _detected(tokenizer.pre_tokenizer.__getstate__().decode())


@lru_cache(maxsize=16)
def _detected(content: str) -> PretokenizerAutomaton:
    try:
        stages = _stages(steps_of(json.loads(content), "pretokenizers"))
        automaton = reduce(cut_again, stages)
        if not _cuts_like(automaton, json.loads(content)):
            raise ValueError("it does not cut as its steps do where each is read by itself")
    except ValueError as error:
        raise ValueError(f"unsupported pre-tokenizer: {error}") from None
    return automaton


def _stages(steps: list[Step]) -> list[PretokenizerAutomaton]:
    """The automata of the steps that cut: all but a ByteLevel without its regex."""
    stages: list[PretokenizerAutomaton] = []
    before = None
    for step in steps:
        if before is not None and before["type"] == "ByteLevel":
            raise ValueError(
                f"{_shown(step)} behind ByteLevel cuts the bytes of characters "
                "(Falcon's Digits take 0xbc for a number), byte level needs whole characters there"
            )
        before = step
        if step["type"] != "ByteLevel" or step["use_regex"]:
            stages.append(_stage(step))
    if not stages:
        raise ValueError("it does not cut")
    return stages


def _stage(step: Step) -> PretokenizerAutomaton:
    """The automaton of one step."""
    found = _run(step)
    if found is not None:
        return found
    for automaton in map(family, FAMILIES):
        if _cuts_like(automaton, step):
            return automaton
    raise ValueError(
        f"{_shown(step)} cuts like none of {', '.join(FAMILIES)}, nor out runs of characters; "
        "byte level needs one of these"
    )


def _run(step: Step) -> PretokenizerAutomaton | None:
    """The automaton of a step that cuts out runs of characters, None for other steps."""
    if step["type"] == "Digits":
        digits = step_set(pre_tokenizers.Digits(individual_digits=False))
        return runs(digits, longest=1 if step["individual_digits"] else None)
    if step["type"] == "Punctuation":
        punctuation = step_set(pre_tokenizers.Punctuation("contiguous"))
        return runs(punctuation, longest=None if step["behavior"] == "Contiguous" else 1)
    return _regex_run(step["pattern"].get("Regex", "")) if step["type"] == "Split" else None


def _regex_run(pattern: str) -> PretokenizerAutomaton | None:
    """The same for a regex."""
    if pattern == r"\s+$":
        return trailing_white_space(regex_set(r"\s"))
    form = RUN.fullmatch(pattern)
    if form is None or (form["lead"] and form["count"] != "+"):
        return None
    longest = None if form["count"] == "+" else int(form["longest"] or 1)
    lead = None if form["lead"] is None else regex_set(form["lead"])
    return runs(regex_set(form["set"]), lead=lead, longest=longest)


def _cuts_like(automaton: PretokenizerAutomaton, content: Step) -> bool:
    """Whether it does on all hard strings; content: as it stands in a tokenizer.json."""
    whole = json.loads(Tokenizer(models.BPE()).to_str())
    whole["pre_tokenizer"] = content
    cut = Tokenizer.from_str(json.dumps(whole)).pre_tokenizer.pre_tokenize_str
    return all(
        [end - start for _, (start, end) in cut(text)] == [*map(len, automaton.pretokens(text))]
        for text in _hard_strings()
    )


@lru_cache(maxsize=1)
def _hard_strings() -> list[str]:
    source = random.Random(0)
    lengths = (source.randint(1, MAX_CHARACTERS) for _ in range(NUM_STRINGS))
    drawn = ["".join(source.choices(ALPHABET, k=length)) for length in lengths]
    return [*drawn, "1234567890123"]


def _shown(step: Step) -> str:
    """A step's type, and the beginning of its pattern."""
    pattern = next(iter(step.get("pattern", {}).values()), None)
    if pattern is None:
        return str(step["type"])
    shown = pattern if len(pattern) <= MAX_SHOWN else f"{pattern[:MAX_SHOWN]}..."
    return f"{step['type']} {shown!r}"
