"""What the regexes of byte-level pretokenizers share, written as automaton transitions."""

from collections.abc import Collection, Mapping

from .pretokenizer_automaton import BEGIN

Table = dict[tuple[str, str], tuple[str, ...]]

APOSTROPHE, SPACE, WHITE, NEWLINE = "apostrophe", "space", "white", "newline"
NUMBER, OTHER, SLASH, MARK = "number", "other", "slash", "mark"
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

    def join(self, state: str, classes: Collection[str], *targets: str) -> None:
        """Characters of `classes` belong to the open pretoken."""
        self.joins.update({(state, name): targets for name in classes})

    def split(self, state: str, classes: Collection[str], *targets: str) -> None:
        """Characters of `classes` begin a pretoken, in `targets` or else where any of them does."""
        self.splits.update({(state, name): targets or self.start[name] for name in classes})

    def split_rest(self, state: str) -> None:
        """Every class that does not join in `state` begins a pretoken."""
        self.split(state, [name for name in self.start if (state, name) not in self.joins])


def add_white_space(rules: TransitionRules, white: Collection[str], keeps: Table) -> None:
    r"""`\s+(?!\S)|\s+` over the classes `white`: a run gives back its last character before others.

    keeps: which first characters of the next pretoken join a single white space, as (kind, class)
    -> targets; the kinds are "space" and "gap" (any other white space).
    """
    for kind in ("space", "gap"):
        single, last = f"single_{kind}", f"last_{kind}"
        for state in (single, last):
            for (owner, name), targets in keeps.items():
                if owner == kind:
                    rules.join(state, [name], *targets)
        visible = [name for name in rules.start if name not in (*white, NEWLINE)]
        for state in (single, last):
            rules.split(state, [name for name in visible if (state, name) not in rules.joins])
    for state in ("single_space", "single_gap", "white_run"):
        rules.join(state, white, "white_run")
        for name in white:
            rules.split(state, [name], "last_space" if name == SPACE else "last_gap")


def add_newlines(rules: TransitionRules, white: Collection[str]) -> None:
    r"""`\s*[\r\n]+`: white space up to the last newline of the run is one pretoken.

    "before_newline" owes a newline, "last_newline" claims to be the last of its run.
    """
    rules.join("before_newline", white, "before_newline")
    rules.join("before_newline", [NEWLINE], "before_newline", "last_newline")
    rules.split("last_newline", [name for name in rules.start if name not in (*white, NEWLINE)])
    for name in white:
        rules.split("last_newline", [name], "single_space" if name == SPACE else "single_gap")


def add_contraction(rules: TransitionRules, letters: Mapping[str, Collection[str]]) -> None:
    """`'s|'t|'re|'ve|'m|'ll|'d` behind its apostrophe; `letters`: classes by role (see LETTERS)."""
    rules.join("contraction", letters["stmd"], "contracted")
    rules.join("contraction", letters["rv"], "contraction_e")
    rules.join("contraction", letters["l"], "contraction_l")
    rules.join("contraction_e", letters["e"], "contracted")
    rules.join("contraction_l", letters["l"], "contracted")
    rules.split_rest("contracted")


def add_digits(rules: TransitionRules, longest: int | None) -> None:
    r"""`\p{N}{1,longest}`, or `\p{N}+` without a limit; the first digit is in "digits_1"."""
    if longest is None:
        rules.join("digits_1", [NUMBER], "digits_1")
        rules.split_rest("digits_1")
        return
    for count in range(1, longest + 1):
        if count < longest:
            rules.join(f"digits_{count}", [NUMBER], f"digits_{count + 1}")
        rules.split_rest(f"digits_{count}")


def finish(rules: TransitionRules) -> tuple[Table, Table]:
    """All transitions, with those of the state before any text."""
    rules.split(BEGIN, list(rules.start))
    return rules.joins, rules.splits
