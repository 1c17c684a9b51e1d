"""The cuts of a pretokenizer as an automaton over character classes."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .utf8 import completions

NUM_CODE_POINTS = 0x110000
SURROGATES = range(0xD800, 0xE000)
MAX_STATES, MAX_REACHED, MAX_CLASSES = 64, 4096, 256
State = TypeVar("State")
Targets = tuple[Iterable[State], Iterable[State]]
"""The states in which a run may go on when it joins a character, and when it splits before it."""


class CharacterClasses:
    """A partition of the code points; class 0 is what no text holds (surrogates, overlong forms).

    `of`: (0x110000,) uint8, the class of each code point; `number`: how many classes there are.
    """

    def __init__(self, of: NDArray[np.integer]) -> None:
        """of: (0x110000,) the class of each code point."""
        self.of = of.astype(np.uint8)
        self.number = int(self.of.max()) + 1
        self._completions: dict[bytes, frozenset[int]] = {}

    def of_text(self, text: str) -> NDArray[np.uint8]:
        """Class of each character, (len(text),) uint8."""
        return self.of[code_points(text)]

    def of_partial(self, partial: bytes) -> frozenset[int]:
        """Classes of the characters whose UTF-8 form starts with `partial`."""
        if partial not in self._completions:
            possible = {
                int(kind) for part in completions(partial) for kind in np.unique(self.of[part])
            }
            self._completions[partial] = frozenset(possible - {0})
        return self._completions[partial]


def code_points(text: str) -> NDArray[np.uint32]:
    """(len(text),) the code point of each character."""
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def joint_classes(
    partitions: Iterable[NDArray[np.generic]],
) -> tuple[CharacterClasses, list[tuple[int, ...]]]:
    """The coarsest classes that distinguish what any of some partitions does.

    partitions: (0x110000,) each, below 256, with all surrogates in one part. Returns the classes,
    and for each of them its number in every partition. Raises ValueError for more than 256 of them.
    """
    of = np.ones(NUM_CODE_POINTS, np.int64)
    of[SURROGATES.start : SURROGATES.stop] = 0
    parts: list[tuple[int, ...]] = [(), ()]
    for partition in partitions:
        pairs = of << 8 | partition.astype(np.int64)
        chosen = np.flatnonzero(np.bincount(pairs))
        if len(chosen) > MAX_CLASSES:
            raise ValueError(f"it distinguishes {len(chosen)} kinds of characters, at most 256")
        number = np.zeros(chosen[-1] + 1, np.int64)
        number[chosen] = np.arange(len(chosen))
        of = number[pairs]
        parts = [(*parts[pair >> 8], pair & 0xFF) for pair in chosen.tolist()]
    return CharacterClasses(of), parts


class PretokenizerAutomaton:
    """A non-deterministic automaton in which every complete text has exactly one accepted run.

    A set of states is an int, bit i for state i, at most 64; state 0 is that before any text.
    Before each character a run either joins it to the open pretoken or splits there:
    `joins[class][state]` and `splits[class][state]` are the sets of states it may go on in. What a
    regex decides by looking ahead, a run guesses and a later state enforces; a text may end in the
    states of `accepting`.
    """

    begin = 1
    """The set of state 0 alone."""

    def __init__(
        self,
        classes: CharacterClasses,
        joins: list[list[int]],
        splits: list[list[int]],
        accepting: int,
    ) -> None:
        """joins, splits: sets of states by class and state. accepting: a set of states."""
        self.classes, self.joins, self.splits = classes, joins, splits
        self.accepting, self.num_states = accepting, len(joins[0])

    def pretokens(self, text: str) -> list[str]:
        """The pretokens of a complete text."""
        frontier: dict[int, list[int]] = {0: []}
        for at, kind in enumerate(self.classes.of_text(text).tolist()):
            advanced: dict[int, list[int]] = {}
            for state, cuts in frontier.items():
                for target in members(self.joins[kind][state]):
                    assert target not in advanced
                    advanced[target] = cuts
                for target in members(self.splits[kind][state]):
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


def smallest_automaton(
    classes: CharacterClasses,
    begin: State,
    step: Callable[[State, int], Targets[State]],
    may_end: Callable[[State], bool],
) -> PretokenizerAutomaton:
    """The automaton that goes on from each state by `step(state, kind)`, from `begin` on.

    It has only states that lie on a run of some text, one for all after which the same texts are
    cut alike, and one class for all characters that lead to the same. Raises ValueError for more
    than 64 states, the bits of a set.
    """
    steps = steps_of_texts(classes.number, begin, step, may_end)
    # 1. Number the states by what may follow, distinguished further in each round; the first is 0.
    number = {state: int(may_end(state)) for state in steps}
    num_states, num_before = 1, 0
    while num_states > num_before:
        forms = {
            state: (
                number[state],
                *(frozenset(number[to] for to in side) for side in targets),
            )
            for state, targets in steps.items()
        }
        numbers = {form: i for i, form in enumerate(dict.fromkeys(forms.values()))}
        number = {state: numbers[form] for state, form in forms.items()}
        num_states, num_before = len(numbers), num_states
    if num_states > MAX_STATES:
        raise ValueError(f"it needs {num_states} states, at most {MAX_STATES}")
    # 2. Sets of them as bits, by state and class: where a character joins, and where it splits.
    rows = {
        number[state]: [sum(1 << to for to in {number[to] for to in side}) for side in targets]
        for state, targets in steps.items()
    }
    columns = [*zip(*(rows[i] for i in range(num_states)), strict=True)]
    nowhere = (0,) * num_states
    relations = [(nowhere, nowhere), *zip(columns[::2], columns[1::2], strict=True)]
    # 3. One class for all characters that lead to the same.
    distinct = [*dict.fromkeys(relations)]
    of = np.array([distinct.index(relation) for relation in relations])[classes.of]
    joins, splits = ([[*side] for side in sides] for sides in zip(*distinct, strict=True))
    accepting = sum(1 << i for i in {number[state] for state in steps if may_end(state)})
    return PretokenizerAutomaton(CharacterClasses(of), joins, splits, accepting)


def steps_of_texts(
    num_classes: int,
    begin: State,
    step: Callable[[State, int], Targets[State]],
    may_end: Callable[[State], bool],
) -> dict[State, list[set[State]]]:
    """Targets of each state that lies on a run of some text, class by class but for class 0: in
    turn by joining and by splitting. The first state is `begin`."""
    # 1. Follow all characters from the beginning.
    steps: dict[State, list[set[State]]] = {}
    before: dict[State, set[State]] = {begin: set()}
    unseen = [begin]
    while unseen:
        state = unseen.pop()
        steps[state] = [set(to) for kind in range(1, num_classes) for to in step(state, kind)]
        for target in dict.fromkeys(chain.from_iterable(steps[state])):
            if target not in before:
                before[target] = set()
                unseen.append(target)
            before[target].add(state)
        if len(before) > MAX_REACHED:
            raise ValueError(f"it needs more than {MAX_REACHED} states")
    # 2. Keep the states from which a text comes to an end.
    kept, unseen = set[State](), [state for state in steps if may_end(state)]
    while unseen:
        if (state := unseen.pop()) not in kept:
            kept.add(state)
            unseen += before[state]
    return {state: [to & kept for to in steps[state]] for state in steps if state in kept}
