r"""The automaton that cuts as a tokenizer's pre-tokenizer does, step by step.

A step cuts each pretoken of the step before as if it were a whole text (`cut_again`). Beside
the regexes of families.py a step may be one of these, what it leaves over being pretokens too:

    C+  C{1,n}  C  ` ?C+`  \s?C+     runs of a set of characters C (also Digits and Punctuation)
    \s+$                             white space at the end

StarCoder    Digits one by one, then GPT-2
BLOOM        ` ?[^(\s|[.,!?...])]+`
DeepSeek-V3  \p{N}{1,3}, CJK and kana, then words (families.py)
DeepSeek-V2  [\r\n], \s?letters+, \s?punctuation+, \s+$, CJK, Digits one by one
"""

import json
import random
import re
from collections.abc import Mapping
from functools import lru_cache, reduce
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from .families import FAMILIES, family
from .pretokenizer import (
    BEGIN,
    NUM_CODE_POINTS,
    SURROGATES,
    CharacterClasses,
    PretokenizerAutomaton,
    Table,
    assigned_characters,
    code_points,
    members,
)
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

    Raises ValueError, in one line, where a step is none of those of families.py and of runs,
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
    """The automaton of one step: of a run of characters, or else that of a family."""
    if step["type"] == "Digits":
        digits = step_set(pre_tokenizers.Digits(individual_digits=False))
        return runs(digits, longest=1 if step["individual_digits"] else None)
    if step["type"] == "Punctuation":
        punctuation = step_set(pre_tokenizers.Punctuation("contiguous"))
        return runs(punctuation, longest=None if step["behavior"] == "Contiguous" else 1)
    pattern = step["pattern"].get("Regex", "") if step["type"] == "Split" else ""
    if pattern == r"\s+$":
        return trailing_white_space(regex_set(r"\s"))
    form = RUN.fullmatch(pattern)
    if form is not None and (form["count"] == "+" or not form["lead"]):
        longest = None if form["count"] == "+" else int(form["longest"] or 1)
        lead = None if form["lead"] is None else regex_set(form["lead"])
        return runs(regex_set(form["set"]), lead=lead, longest=longest)
    for automaton in map(family, FAMILIES):
        if _cuts_like(automaton, step):
            return automaton
    raise ValueError(
        f"{_shown(step)} cuts like none of {', '.join(FAMILIES)}, nor out runs of characters; "
        "byte level needs one of these"
    )


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


MAX_STATES, MAX_CLASSES = 64, 256
CharacterSet = NDArray[np.bool_]
"""(0x110000,) which code points belong to it."""
State = tuple[int, int]
Targets = dict[tuple[State, str], set[State]]
"""Where a state leads by the name of a class."""


@lru_cache(maxsize=16)
def regex_set(pattern: str) -> CharacterSet:
    """The characters that the library's regex engine matches with a pattern of one character."""
    every = "".join(map(chr, (*range(SURROGATES.start), *range(SURROGATES.stop, NUM_CODE_POINTS))))
    others = normalizers.Replace(Regex(f"(?:{pattern})+"), "").normalize_str(every)
    chosen = np.ones(NUM_CODE_POINTS, np.bool_)
    chosen[code_points(others)] = False
    chosen[SURROGATES.start : SURROGATES.stop] = False
    return chosen


def step_set(contiguous: pre_tokenizers.PreTokenizer) -> CharacterSet:
    """The characters that a contiguous Digits or Punctuation cuts out; neither has U+0000."""
    text = assigned_characters()
    points, chosen = code_points(text), np.zeros(NUM_CODE_POINTS, np.bool_)
    for _, (start, end) in contiguous.pre_tokenize_str(text)[1::2]:
        chosen[points[start:end]] = True
    return chosen


def runs(
    inside: CharacterSet, *, lead: CharacterSet | None = None, longest: int | None = None
) -> PretokenizerAutomaton:
    """`[inside]{1,longest}` cut out, without a limit if longest is None, and with one of `lead`
    before it where there is one; then longest must be None.

    A "lead" begins a pretoken and owes a run, a "free" one of the same characters owes none.
    """
    kind = np.where(inside, 1, 2)
    if lead is not None:
        kind[lead & ~inside] = 3  # of a character that is both, a run may as well begin with it
    run_states = [f"run_{count}" for count in range(1, (longest or 1) + 1)]
    begun = {"rest": ("rest",), "lead": ("free", "lead"), "inside": ("run_1",)}
    splits: Table = {(state, n): begun[n] for state in (BEGIN, *run_states) for n in begun}
    joins: Table = {("lead", "inside"): ("run_1",)}
    for state in ("rest", "free"):
        joins |= {(state, "rest"): ("rest",), (state, "lead"): ("free",)}
        splits[state, "lead"] = ("lead",)
    splits["rest", "inside"] = ("run_1",)
    for state, after in pairwise(run_states) if longest else [("run_1", "run_1")]:
        joins[state, "inside"] = (after,)
        del splits[state, "inside"]
    classes = CharacterClasses(["", "inside", "rest", "lead"], kind)
    return PretokenizerAutomaton(classes, joins, splits, [BEGIN, "rest", "free", *run_states])


def trailing_white_space(white: CharacterSet) -> PretokenizerAutomaton:
    r"""`\s+$` cut out of texts of one line; white space elsewhere is "held" by what follows."""
    joins: Table = {("trailing", "white"): ("trailing",), ("text", "rest"): ("text",)}
    joins |= {("text", "white"): ("held",), ("held", "white"): ("held",)}
    joins["held", "rest"] = ("text",)
    splits: Table = {("text", "white"): ("trailing",), (BEGIN, "rest"): ("text",)}
    splits[BEGIN, "white"] = ("held", "trailing")
    classes = CharacterClasses(["", "white", "rest"], np.where(white, 1, 2))
    return PretokenizerAutomaton(classes, joins, splits, [BEGIN, "text", "trailing"])


def cut_again(first: PretokenizerAutomaton, second: PretokenizerAutomaton) -> PretokenizerAutomaton:
    """Each pretoken of `first` cut by `second`, which begins anew in it and must end with it.

    Its states are pairs, those alone that lie on a run of some text. Raises ValueError for more
    states than 64, the bits of a set, or more classes than 256.
    """
    # 1. Follow both at once from the beginning, over all characters.
    classes, parts = _joint_classes(first.classes, second.classes)
    joins: Targets = {}
    splits: Targets = {}
    reached, unseen = {(0, 0)}, [(0, 0)]
    while unseen:
        state = unseen.pop()
        for name, part in zip(classes.names[1:], parts[1:], strict=True):
            joins[state, name], splits[state, name] = _steps(first, second, state, part)
            new = (joins[state, name] | splits[state, name]) - reached
            reached |= new
            unseen += new
    # 2. Keep the states from which both come to an end, those ends included.
    ends = {
        (one, two) for one, two in reached if first.accepting >> one & second.accepting >> two & 1
    }
    before: dict[State, set[State]] = {}
    for (state, _), targets in chain(joins.items(), splits.items()):
        for target in targets:
            before.setdefault(target, set()).add(state)
    kept, unseen = set(ends), [*ends]
    while unseen:
        new = before.get(unseen.pop(), set()) - kept
        kept |= new
        unseen += new
    if len(kept) > MAX_STATES:
        raise ValueError(f"its steps together need {len(kept)} states, at most {MAX_STATES}")
    tables = [
        {(state, name): targets & kept for (state, name), targets in table.items() if state in kept}
        for table in (joins, splits)
    ]
    return PretokenizerAutomaton(classes, tables[0], tables[1], ends, begin=(0, 0))


def _joint_classes(
    first: CharacterClasses, second: CharacterClasses
) -> tuple[CharacterClasses, list[tuple[int, int]]]:
    """The coarsest classes that tell apart what either does, and their classes in both."""
    pairs = first.of.astype(np.int64) << 8 | second.of
    chosen = np.flatnonzero(np.bincount(pairs))
    assert chosen[0] == 0
    if len(chosen) > MAX_CLASSES:
        raise ValueError(
            f"its steps together tell {len(chosen)} kinds of characters apart, "
            f"at most {MAX_CLASSES}"
        )
    of = np.zeros(chosen[-1] + 1, np.int64)
    of[chosen] = np.arange(len(chosen))
    parts = [(pair >> 8, pair & 0xFF) for pair in chosen.tolist()]
    names = ["", *(f"{first.names[one]} {second.names[two]}" for one, two in parts[1:])]
    return CharacterClasses(names, of[pairs]), parts


def _steps(
    first: PretokenizerAutomaton,
    second: PretokenizerAutomaton,
    state: State,
    name: tuple[int, int],
) -> tuple[set[State], set[State]]:
    """Where a character of a class leads: by joining, by splitting."""
    joined = members(first.joins[name[0]][state[0]])
    split = members(first.splits[name[0]][state[0]])
    begun = second.splits[name[1]][0] if second.accepting >> state[1] & 1 else 0
    within = members(second.joins[name[1]][state[1]])
    cut = members(second.splits[name[1]][state[1]])
    joins = {(one, two) for one in joined for two in within}
    splits = {(one, two) for one in joined for two in cut}
    return joins, splits | {(one, two) for one in split for two in members(begun)}
