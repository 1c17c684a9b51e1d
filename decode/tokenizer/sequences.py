r"""Pretokenizers that cut several times, one step after another, as automata.

A step cuts each pretoken of the step before as if it were a text of its own (`cut_again`). Beside
the regexes of families.py a step may be one of these, what it leaves over being pretokens too:

    C+  C{1,n}  C  ` ?C+`  \s?C+     runs of a set of characters C (also Digits and Punctuation)
    \s+$                             white space at the end

StarCoder    Digits one by one, then GPT-2
BLOOM        ` ?[^(\s|[.,!?...])]+`
DeepSeek-V3  \p{N}{1,3}, CJK and kana, then words (families.py)
DeepSeek-V2  [\r\n], \s?letters+, \s?punctuation+, \s+$, CJK, Digits one by one
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, normalizers, pre_tokenizers

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

MAX_STATES, MAX_CLASSES = 64, 256
CharacterSet = NDArray[np.bool_]
"""(0x110000,) which code points belong to it."""
State = tuple[int, int]
Targets = dict[tuple[int, int, int], set[State]]
"""Where a state (two numbers) leads by a class (the third)."""


@lru_cache(maxsize=16)
def regex_set(pattern: str) -> CharacterSet:
    """The characters that the library's regex engine matches with a pattern of one character."""
    others = normalizers.Replace(Regex(f"(?:{pattern})+"), "").normalize_str(_every_character())
    found = np.ones(NUM_CODE_POINTS, np.bool_)
    found[code_points(others)] = False
    found[SURROGATES.start : SURROGATES.stop] = False
    return found


def step_set(contiguous: pre_tokenizers.PreTokenizer) -> CharacterSet:
    """The characters that a contiguous Digits or Punctuation cuts out; neither has U+0000."""
    text = assigned_characters()
    points, found = code_points(text), np.zeros(NUM_CODE_POINTS, np.bool_)
    for _, (start, end) in contiguous.pre_tokenize_str(text)[1::2]:
        found[points[start:end]] = True
    return found


@lru_cache(maxsize=1)
def _every_character() -> str:
    return "".join(
        map(chr, chain(range(SURROGATES.start), range(SURROGATES.stop, NUM_CODE_POINTS)))
    )


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
    classes, parts = _joint_classes(first.classes, second.classes)
    joins: Targets = {}
    splits: Targets = {}
    reached, unseen = {(0, 0)}, [(0, 0)]
    while unseen:
        state = unseen.pop()
        for name, part in enumerate(parts[1:], 1):
            joins[*state, name], splits[*state, name] = _steps(first, second, state, part)
            new = (joins[*state, name] | splits[*state, name]) - reached
            reached |= new
            unseen += new
    ends = {
        (one, two) for one, two in reached if first.accepting >> one & second.accepting >> two & 1
    }
    kept = _leading_to(ends, [joins, splits])
    if len(kept) > MAX_STATES:
        raise ValueError(f"its steps together need {len(kept)} states, at most {MAX_STATES}")
    by_name = [_by_name(table, classes, kept) for table in (joins, splits)]
    return PretokenizerAutomaton(classes, by_name[0], by_name[1], map(_name, ends))


def _joint_classes(
    first: CharacterClasses, second: CharacterClasses
) -> tuple[CharacterClasses, list[tuple[int, int]]]:
    """The coarsest classes that tell apart what either does, and their classes in both."""
    pairs = first.of.astype(np.int64) << 8 | second.of
    found = np.flatnonzero(np.bincount(pairs))
    assert found[0] == 0
    if len(found) > MAX_CLASSES:
        raise ValueError(
            f"its steps together tell {len(found)} kinds of characters apart, at most {MAX_CLASSES}"
        )
    of = np.zeros(found[-1] + 1, np.int64)
    of[found] = np.arange(len(found))
    parts = [(pair >> 8, pair & 0xFF) for pair in found.tolist()]
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


def _leading_to(ends: set[State], tables: list[Targets]) -> set[State]:
    """The states from which some text ends, those of `ends` included."""
    before: dict[State, set[State]] = {}
    for (one, two, _), targets in chain(*(table.items() for table in tables)):
        for target in targets:
            before.setdefault(target, set()).add((one, two))
    kept, unseen = set(ends), [*ends]
    while unseen:
        new = before.get(unseen.pop(), set()) - kept
        kept |= new
        unseen += new
    return kept


def _name(state: State) -> str:
    return BEGIN if state == (0, 0) else f"{state[0]} {state[1]}"


def _by_name(table: Targets, classes: CharacterClasses, kept: set[State]) -> Table:
    def rules() -> Iterator[tuple[tuple[str, str], tuple[str, ...]]]:
        for (one, two, name), targets in table.items():
            if (one, two) in kept:
                names = tuple(_name(target) for target in sorted(targets & kept))
                yield (_name((one, two)), classes.names[name]), names

    return dict(rules())
