r"""The automaton of a regex: where its matches begin and end, one character at a time.

A backtracking engine takes the first way through a regex that matches: alternatives in order, and
the longest first of what is repeated. Followed along a text, these ways are a list of threads, each
a node of the regex, the preferred one first (Pike's simulation; Cox 2009, "Regular Expression
Matching: the Virtual Machine Approach"). Where one of them matches, a run of the automaton guesses
whether the match ends here. If so, none of the threads before it may ever match; if not, one of
them must, and the threads after it are dropped. Where no match begins, no thread from the first
node may match.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial, reduce
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, normalizers

from .pretokenizer import (
    NUM_CODE_POINTS,
    SURROGATES,
    PretokenizerAutomaton,
    code_points,
    joint_classes,
    smallest_automaton,
    steps_of_texts,
)

CHARACTERS = (
    r"\\[pP]\{\^?\w+\}|\\x\{[0-9A-Fa-f]+\}|\\u[0-9A-Fa-f]{4}|\\[dDsSwWrntfv]|\\[^\w]"
    r"|\[(?:\\.|[^][\\]|\[(?:\\.|[^][\\])*\])*\]|[^][\\(){}|?*+^$.]"
)
PIECE = re.compile(
    rf"(?P<set>{CHARACTERS})|\(\?(?P<look>[!=])(?P<ahead>{CHARACTERS})\)|(?P<end>\$)"
    r"|(?P<group>\((?:\?i?:|(?!\?)))",
    re.DOTALL,
)
"""A set of characters, or one of them or none of them ahead, or the end of a line, or a group."""
REPEATED = re.compile(r"(?P<sign>[?*+])|\{(?P<least>\d+)(?P<more>,(?P<most>\d*))?\}")
BAR, CLOSED = re.compile(r"\|"), re.compile(r"\)")
SIGNS = {"?": (0, 1), "*": (0, None), "+": (1, None)}
SAMPLED_FROM = 0x40000
"""The first plane without an assigned character; those of tags, from 0xE0000 on, are some."""
MATCH, END = 0, 0
"""The node in which a regex has matched, and what follows a text, in place of a class."""

CharacterSet = NDArray[np.bool_]
"""(0x110000,) which code points belong to it; of surrogates all or none."""
Threads = tuple[int, ...]
Build = Callable[[int], int]
"""Adds the nodes of a part of a regex before another one; returns the first of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A node of a regex: reads a character of a set, or only sees it; `after` go on, in order.

    chars: None where nothing is read or seen. at_end: whether the end of the text will do for it.
    letter: the folded character that it reads, if case is ignored and all that it reads fold to it.
    """

    after: Threads
    chars: CharacterSet | None = None
    is_read: bool = False
    at_end: bool = False
    letter: str = ""


class BacktrackingRegex:
    """A regex in Oniguruma's syntax: greedy; it may look ahead by one character.

    `nodes`: MATCH, then those before it; `start` is the number of the first one of the regex.
    """

    def __init__(self, pattern: str) -> None:
        """Raises ValueError for syntax that is not known here, and where the engine goes other ways
        than described above: it takes a ligature for its letters, and leaves a repeat by matching
        an empty text."""
        self.nodes = [Node(())]
        self._pattern, self._at = pattern, 0
        build = self._alternatives(ignores_case=False)
        if self._at < len(pattern):
            raise self._unknown()
        self.start = build(MATCH)

    def _unknown(self) -> ValueError:
        rest = self._pattern[self._at : self._at + 12]
        return ValueError(f"byte level does not know what {rest!r} means in it")

    def _taken(self, form: re.Pattern[str]) -> re.Match[str] | None:
        match = form.match(self._pattern, self._at)
        self._at = self._at if match is None else match.end()
        return match

    def _alternatives(self, *, ignores_case: bool) -> Build:
        parts = [self._sequence(ignores_case=ignores_case)]
        while self._taken(BAR):
            parts.append(self._sequence(ignores_case=ignores_case))
        if len(parts) == 1:
            return parts[0]
        return lambda after: self._add(Node(tuple(part(after) for part in parts)))

    def _sequence(self, *, ignores_case: bool) -> Build:
        parts: list[Build] = []
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            parts.append(self._repeated(self._piece(ignores_case=ignores_case)))
        return lambda after: reduce(lambda at, part: part(at), reversed(parts), after)

    def _piece(self, *, ignores_case: bool) -> Build:
        piece = self._taken(PIECE)
        if piece is None:
            raise self._unknown()
        if piece["set"]:
            chars = character_set(piece["set"], ignores_case=ignores_case)
            return partial(self._add_read, chars, letter_of(chars) if ignores_case else "")
        if piece["ahead"]:
            is_none = piece["look"] == "!"
            seen = character_set(piece["ahead"], ignores_case=ignores_case) ^ is_none
            return lambda after: self._add(Node((after,), seen, at_end=is_none))
        if piece["end"]:
            return lambda after: self._add(Node((after,), character_set("\n"), at_end=True))
        build = self._alternatives(ignores_case=ignores_case or piece["group"] == "(?i:")
        if self._taken(CLOSED) is None:
            raise self._unknown()
        return build

    def _repeated(self, part: Build) -> Build:
        times = self._taken(REPEATED)
        if times is None:
            return part
        if times["sign"]:
            least, most = SIGNS[times["sign"]]
        else:
            least, most = int(times["least"]), int(times["most"]) if times["most"] else None
            most = most if times["more"] else least
        is_reversed = most is not None and most < least
        if is_reversed or REPEATED.match(self._pattern, self._at):  # possessive, lazy or twice
            raise self._unknown()
        return partial(self._add_repeated, part, least, most)

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _add_read(self, chars: CharacterSet, letter: str, after: int) -> int:
        letters = letter + self.nodes[after].letter
        if len(letters) > 1 and any(letters in text for text in multiple_folds()):
            raise ValueError(
                f"byte level cannot ignore the case of {letters!r}, to which one may fold"
            )
        return self._add(Node((after,), chars, is_read=True, letter=letter))

    def _add_repeated(self, part: Build, least: int, most: int | None, after: int) -> int:
        at = after
        if most is None:
            at = self._add(Node(()))
            first = part(at)
            if self._reaches(first, at):
                raise ValueError("byte level cannot repeat what may match an empty text")
            self.nodes[at] = Node((first, after))
        for _ in range(0 if most is None else most - least):
            at = self._add(Node((part(at), after)))
        for _ in range(least):
            at = part(at)
        return at

    def _reaches(self, start: int, end: int) -> bool:
        """True if a thread may come from one node to another one without reading a character."""
        seen, untried = set[int](), [start]
        while untried:
            if (at := untried.pop()) not in seen:
                seen.add(at)
                untried += () if self.nodes[at].is_read else self.nodes[at].after
        return end in seen


@lru_cache(maxsize=128)
def character_set(pattern: str, *, ignores_case: bool = False) -> CharacterSet:
    """The characters that the library's regex engine matches with a pattern of one character.

    Raises ValueError where it matches several as well: ß in a pattern that ignores case, for "ss".
    """
    # A set inside another one, as that of all others, would be folded and may be defined otherwise.
    one = f"(?{'i' * ignores_case}:{pattern})"
    lines = "\n".join(multiple_folds())
    if ignores_case and without(f"^{one}$", lines) != lines:
        raise ValueError(f"{pattern!r} matches several characters where it ignores case")
    named = [*map(ord, pattern), *(int(c, 16) for c in re.findall(r"\\x\{(\w+)\}", pattern))]
    sought = known_characters(has_all=max(named) >= SAMPLED_FROM)
    chosen = np.ones(NUM_CODE_POINTS, np.bool_)
    chosen[code_points(without(f"{one}+", sought))] = False
    is_known = np.zeros(NUM_CODE_POINTS, np.bool_)
    is_known[code_points(sought)] = True
    return chosen[np.maximum.accumulate(np.where(is_known, np.arange(NUM_CODE_POINTS), 0))]


def without(pattern: str, text: str) -> str:
    """A text without what a regex matches. Raises ValueError where the library cannot read it."""
    try:
        return normalizers.Replace(Regex(pattern), "").normalize_str(text)
    except Exception as error:  # the library raises no narrower one
        raise ValueError(str(error)) from None


def letter_of(chars: CharacterSet) -> str:
    """The folded form that all characters of a set share, or nothing if they share none."""
    few = np.flatnonzero(chars)[:8].tolist()  # at most four fold to the same
    folded = {chr(code).casefold() for code in few}
    return folded.pop() if len(folded) == 1 else ""


@cache
def multiple_folds() -> list[str]:
    """The folded forms that have several characters: those of a ligature, and "ss" of ß."""
    folds = {chr(code).casefold() for code in range(0x10000)}  # none of later ones is longer
    return sorted(text for text in folds if len(text) > 1)


@lru_cache(maxsize=2)
def known_characters(*, has_all: bool = False) -> str:
    """All characters but those like the one before: of the planes in which none is assigned, or
    all but the last two are private, one of 4,096 represents the others. A quarter of all, and of
    the time.

    has_all: for patterns that name one of these, which distinguishes it from the others.
    """
    step = 1 if has_all else 0x1000
    spans = (
        range(SURROGATES.start),
        range(SURROGATES.stop, SAMPLED_FROM),
        range(SAMPLED_FROM, 0xE0000, step),
        range(0xE0000, 0xE1000),
        range(0xE1000, NUM_CODE_POINTS, step),
        range(0xFFFE, NUM_CODE_POINTS, 0x10000),
    )
    return "".join(map(chr, sorted({*chain(*spans)})))


State = tuple[Threads, frozenset[int]]
"""The threads of the open match, none outside matches, and the nodes that may not match."""


class RegexSteps:
    """The states of a regex's automaton: see the head of this file.

    `begin`: the state before any text, in which an empty match has just ended.
    """

    begin: State = (MATCH,), frozenset()

    def __init__(self, regex: BacktrackingRegex) -> None:
        """Raises ValueError for a regex that matches an empty text."""
        sets = {id(node.chars): node.chars for node in regex.nodes if node.chars is not None}
        self.classes, kinds = joint_classes(sets.values())
        self._holds = dict(zip(sets, zip(*kinds, strict=True), strict=True))
        self._nodes, self._first = regex.nodes, (regex.start,)
        self.read = cache(self._threads_after)
        """The threads after a character of a class, or END, and whether a match ends before it; the
        threads after that match are dropped."""
        if any(self.read(self._first, kind)[1] for kind in range(self.classes.number)):
            raise ValueError("it matches an empty text")

    def _threads_after(self, threads: Threads, kind: int) -> tuple[Threads, bool]:
        following: dict[int, None] = {}  # as a set in order
        seen: set[int] = set()
        untried = [*reversed(threads)]
        while untried:
            if (at := untried.pop()) in seen:
                continue
            seen.add(at)
            if at == MATCH:
                return tuple(following), True
            node = self._nodes[at]
            if node.chars is not None and not self._matches(node, kind):
                continue
            if node.is_read:
                following.update(dict.fromkeys(node.after))
            else:
                untried += reversed(node.after)
        return tuple(following), False

    def _matches(self, node: Node, kind: int) -> bool:
        return node.at_end if kind == END else bool(self._holds[id(node.chars)][kind])

    def step(self, state: State, kind: int) -> tuple[list[State], list[State]]:
        """States that a character leads to by joining the open pretoken, and by beginning one."""
        threads, banned = state
        following, is_wrong = self.read(tuple(sorted(banned)), kind)
        if is_wrong:
            return [], []
        banned, (first, _) = frozenset(following), self.read(self._first, kind)
        # 1. Outside matches: one begins here, or none does.
        if not threads:
            return [((), banned.union(first))], [(first, banned)] if first else []
        # 2. Inside: the match goes on by a preferred thread, or it ends here.
        preferred, may_end = self.read(threads, kind)
        joins = [(preferred, banned)] if preferred else []
        if not may_end:
            return joins, []
        banned = banned.union(preferred)
        splits = [(first, banned)] if first else []
        return joins, [*splits, ((), banned.union(first))]

    def may_end(self, state: State) -> bool:
        """True if the text may end here."""
        threads, banned = state
        may_end = not threads or self.read(threads, END)[1]
        return may_end and not self.read(tuple(sorted(banned)), END)[1]


@lru_cache(maxsize=16)
def regex_automaton(pattern: str) -> PretokenizerAutomaton:
    """The automaton that cuts out the matches of a regex; what they leave over are pretokens too.

    Raises ValueError for unknown syntax, for a match of an empty text and for too many states.
    """
    steps = RegexSteps(BacktrackingRegex(pattern))
    return smallest_automaton(steps.classes, steps.begin, steps.step, steps.may_end)


def covers_texts(pattern: str) -> bool:
    """True if the matches of a regex, one after another, are all of every text."""
    steps = RegexSteps(BacktrackingRegex(pattern))
    states = steps_of_texts(steps.classes.number, steps.begin, steps.step, steps.may_end)
    return all(threads for threads, _ in states)
