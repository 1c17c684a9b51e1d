"""Where a pretokenizer cuts, as an automaton over character classes."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, normalizers

from .utf8 import completions

NUM_CODE_POINTS = 0x110000
SURROGATES = range(0xD800, 0xE000)
CATEGORIES = ("Lu", "Lt", "Ll", "Lm", "Lo", "M", "N", "P", "S")
# Unicode White_Space: what \s means to Oniguruma, and less than str.isspace.
WHITE_SPACE = frozenset(
    chain(
        range(0x09, 0x0E),
        (0x20, 0x85, 0xA0, 0x1680),
        range(0x2000, 0x200B),
        (0x2028, 0x2029, 0x202F, 0x205F, 0x3000),
    )
)
# What patterns name by itself: ASCII, white space and the long s, which folds to s.
NAMED = sorted({*range(0x80), *WHITE_SPACE, 0x17F})
_UNNAMED = "\U0010ffff"


class CharacterClasses:
    """A partition of the code points; class 0 is what no text holds (surrogates, overlong forms).

    `names`: the classes in order; `of`: (0x110000,) uint8, the class of each code point.
    """

    def __init__(self, names: Sequence[str], of: NDArray[np.integer]) -> None:
        """names: the first is that of class 0. of: (0x110000,) the class of each code point."""
        self.names = [*names]
        self.of = of.astype(np.uint8)
        self.of[SURROGATES.start : SURROGATES.stop] = 0
        self._completions: dict[bytes, frozenset[int]] = {}

    @classmethod
    def by_category(cls, classify: Callable[[str, str], str]) -> "CharacterClasses":
        """classify: name of the class of a character, given it and its category.

        Categories are those of CATEGORIES, "" for all others. Of a character that is not among
        NAMED nothing but its category may decide.
        """
        categories, known = _categories(), ("", *CATEGORIES)
        kinds = [classify(_UNNAMED, category) for category in known]
        named = {code: classify(chr(code), known[categories[code]]) for code in NAMED}
        names = ["", *sorted({*kinds, *named.values()})]
        of = np.array([names.index(kind) for kind in kinds], np.uint8)[categories]
        for code, name in named.items():
            of[code] = names.index(name)
        return cls(names, of)

    def of_text(self, text: str) -> NDArray[np.uint8]:
        """Class of each character, (len(text),) uint8."""
        return self.of[code_points(text)]

    def of_partial(self, partial: bytes) -> frozenset[int]:
        """Classes of the characters whose UTF-8 form starts with `partial`."""
        if partial not in self._completions:
            possible = {
                int(name) for part in completions(partial) for name in np.unique(self.of[part])
            }
            self._completions[partial] = frozenset(possible - {0})
        return self._completions[partial]


@lru_cache(maxsize=1)
def assigned_characters() -> str:
    """Planes 0 to 3 and 14 without the surrogates: all that is assigned, private use aside."""
    spans = (range(SURROGATES.start), range(SURROGATES.stop, 0x40000), range(0xE0000, 0xE1000))
    return "".join(map(chr, chain(*spans)))


@lru_cache(maxsize=1)
def _categories() -> NDArray[np.uint8]:
    """(0x110000,) 1 + the index in CATEGORIES of each character that has one, 0 for all others.

    As the pretokenizers' regex engine has it: Python's table would differ from it by the
    version of Unicode, 9,392 letters with Python 3.11.
    """
    category = np.zeros(NUM_CODE_POINTS, np.uint8)
    for number, name in enumerate(CATEGORIES, 1):
        others = normalizers.Replace(Regex(rf"\P{{{name}}}+"), "")
        category[code_points(others.normalize_str(assigned_characters()))] = number
    return category


def code_points(text: str) -> NDArray[np.uint32]:
    """(len(text),) the code point of each character."""
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


BEGIN = "begin"


class PretokenizerAutomaton:
    """A non-deterministic automaton in which every complete text has exactly one accepted run.

    A set of states is an int, bit i for state i. Before each character a run either joins it to the
    open pretoken or splits there: `joins[class][state]` and `splits[class][state]` are the sets of
    states it may go on in. What a regex decides by looking ahead, a run guesses and a later state
    enforces; a text may end in the states of `accepting`. `begin` is the state before any text.
    """

    def __init__(
        self,
        classes: CharacterClasses,
        joins: Mapping[tuple[Any, str], Iterable[Any]],
        splits: Mapping[tuple[Any, str], Iterable[Any]],
        accepting: Iterable[Any],
        begin: Any = BEGIN,
    ) -> None:
        """joins, splits: target states by (state, class), states and classes by name."""
        self.classes = classes
        targets = {name for table in (joins, splits) for names in table.values() for name in names}
        self.names = [begin, *sorted(targets - {begin})]
        """States in order, at most 64."""
        self._bit = {name: 1 << i for i, name in enumerate(self.names)}
        self.begin = self._bit[begin]
        self.accepting = self._set(accepting)
        self.joins = self._table(joins)
        self.splits = self._table(splits)

    def _set(self, names: Iterable[Any]) -> int:
        return sum(self._bit[name] for name in set(names))

    def _table(self, rules: Mapping[tuple[Any, str], Iterable[Any]]) -> list[list[int]]:
        return [
            [self._set(rules.get((state, name), ())) for state in self.names]
            for name in self.classes.names
        ]

    def pretokens(self, text: str) -> list[str]:
        """The pretokens of a complete text."""
        frontier: dict[int, list[int]] = {0: []}
        for at, name in enumerate(self.classes.of_text(text).tolist()):
            advanced: dict[int, list[int]] = {}
            for state, cuts in frontier.items():
                for target in members(self.joins[name][state]):
                    assert target not in advanced
                    advanced[target] = cuts
                for target in members(self.splits[name][state]):
                    assert target not in advanced
                    advanced[target] = [*cuts, at]
            frontier = advanced
        runs = [cuts for state, cuts in frontier.items() if self.accepting >> state & 1]
        if len(runs) != 1:
            raise AssertionError(f"{len(runs)} ways to cut {text!r}")
        cuts = [*runs[0], len(text)]
        return [text[start:end] for start, end in pairwise(cuts)]


def members(states: int) -> list[int]:
    """The indices of the bits of a set, ascending."""
    return [bit for bit in range(states.bit_length()) if states >> bit & 1]


def image(relation: Sequence[int], states: int) -> int:
    """Union of `relation[state]` over a set of states."""
    union = 0
    while states:
        lowest = states & -states
        union |= relation[lowest.bit_length() - 1]
        states ^= lowest
    return union


Table = dict[tuple[str, str], tuple[str, ...]]

APOSTROPHE, SPACE, WHITE, NEWLINE = "apostrophe", "space", "white", "newline"
NUMBER, OTHER, SLASH, MARK = "number", "other", "slash", "mark"
WHITES = (SPACE, WHITE)
WHITE_ENDS = ("single_space", "single_gap", "white_run")
ROLES = {**dict.fromkeys("stmd", "stmd"), **dict.fromkeys("rv", "rv"), "e": "e", "l": "l"}
"""Letters by their part in contractions."""


class TransitionRules:
    """Transitions of an automaton under construction, state by state.

    `start`: the states in which a pretoken begins, by the class of its first character.
    """

    def __init__(self, start: Mapping[str, tuple[str, ...]]) -> None:
        self.start = start
        self.joins: Table = {}
        self.splits: Table = {}

    def automaton(
        self, classify: Callable[[str, str], str], accepting: Iterable[str]
    ) -> PretokenizerAutomaton:
        """That of all transitions, with those of the state before any text.

        accepting: states in which a text may end, beside that and those of white space.
        """
        self.split(BEGIN, list(self.start))
        ends = {BEGIN, *WHITE_ENDS, *accepting}
        classes = CharacterClasses.by_category(classify)
        return PretokenizerAutomaton(classes, self.joins, self.splits, ends)

    def join(self, state: str, classes: Collection[str], *targets: str) -> None:
        """Characters of `classes` belong to the open pretoken."""
        self.joins.update({(state, name): targets for name in classes})

    def split(self, state: str, classes: Collection[str], *targets: str) -> None:
        """Characters of `classes` begin a pretoken, in `targets` or else where any of them does."""
        self.splits.update({(state, name): targets or self.start[name] for name in classes})

    def split_rest(self, state: str) -> None:
        """Every class that does not join in `state` begins a pretoken."""
        self.split(state, [name for name in self.start if (state, name) not in self.joins])

    def add_white_space(self, keeps: Table) -> None:
        r"""`\s+(?!\S)|\s+` over WHITES: a run gives back its last character before others.

        keeps: which first characters of the next pretoken join a single white space, as (kind,
        class) -> targets; the kinds are "space" and "gap" (any other white space).
        """
        visible = [name for name in self.start if name not in (*WHITES, NEWLINE)]
        for kind in ("space", "gap"):
            for state in (f"single_{kind}", f"last_{kind}"):
                for (at, name), targets in keeps.items():
                    if at == kind:
                        self.join(state, [name], *targets)
                self.split(state, [name for name in visible if (state, name) not in self.joins])
        for state in WHITE_ENDS:
            self.join(state, WHITES, "white_run")
            self.split(state, [SPACE], "last_space")
            self.split(state, [WHITE], "last_gap")

    def add_newlines(self) -> None:
        r"""`\s*[\r\n]+`: white space up to the last newline of the run is one pretoken.

        "before_newline" owes a newline, "last_newline" claims to be the last of its run.
        """
        self.join("before_newline", WHITES, "before_newline")
        self.join("before_newline", [NEWLINE], "before_newline", "last_newline")
        visible = [name for name in self.start if name not in (*WHITES, NEWLINE)]
        self.split("last_newline", visible)
        self.split("last_newline", [SPACE], "single_space")
        self.split("last_newline", [WHITE], "single_gap")

    def add_contraction(self, letters: Mapping[str, Collection[str]]) -> None:
        """`'s|'t|'re|'ve|'m|'ll|'d` behind its apostrophe; letters: classes by role, see ROLES."""
        self.join("contraction", letters["stmd"], "contracted")
        self.join("contraction", letters["rv"], "contraction_e")
        self.join("contraction", letters["l"], "contraction_l")
        self.join("contraction_e", letters["e"], "contracted")
        self.join("contraction_l", letters["l"], "contracted")
        self.split_rest("contracted")

    def add_digits(self, longest: int | None) -> None:
        r"""`\p{N}{1,longest}`, or `\p{N}+` without a limit; the first digit is in "digits_1"."""
        for count in range(1, (longest or 1) + 1):
            if longest is None:
                self.join("digits_1", [NUMBER], "digits_1")
            elif count < longest:
                self.join(f"digits_{count}", [NUMBER], f"digits_{count + 1}")
            self.split_rest(f"digits_{count}")
