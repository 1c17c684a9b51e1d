"""Where a pretokenizer cuts, as an automaton over character classes."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from .character_classes import CharacterClasses

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
        joins: Mapping[tuple[str, str], Iterable[str]],
        splits: Mapping[tuple[str, str], Iterable[str]],
        accepting: Iterable[str],
    ) -> None:
        """joins, splits: target states by (state, class), all by name."""
        self.classes = classes
        targets = {name for table in (joins, splits) for names in table.values() for name in names}
        self.names = [BEGIN, *sorted(targets - {BEGIN})]
        self._bit = {name: 1 << place for place, name in enumerate(self.names)}
        self.begin = self._bit[BEGIN]
        self.accepting = self._set(accepting)
        self.joins = self._table(joins)
        self.splits = self._table(splits)

    @property
    def num_states(self) -> int:
        """Number of states, at most 64."""
        return len(self.names)

    def _set(self, names: Iterable[str]) -> int:
        return sum(self._bit[name] for name in set(names))

    def _table(self, rules: Mapping[tuple[str, str], Iterable[str]]) -> list[list[int]]:
        empty = frozenset[str]()
        return [
            [self._set(rules.get((state, name), empty)) for state in self.names]
            for name in self.classes.names
        ]

    def pretokens(self, text: str) -> list[str]:
        """The pretokens of a complete text."""
        frontier: dict[int, list[int]] = {0: []}
        for at, name in enumerate(self.classes.of_text(text).tolist()):
            frontier = self._advance(frontier, at, name)
        runs = [cuts for state, cuts in frontier.items() if self.accepting >> state & 1]
        if len(runs) != 1:
            raise AssertionError(f"{len(runs)} ways to cut {text!r}")
        cuts = [*runs[0], len(text)]
        return [text[start:end] for start, end in pairwise(cuts)]

    def _advance(self, frontier: dict[int, list[int]], at: int, name: int) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for state, cuts in frontier.items():
            for target in members(self.joins[name][state]):
                assert target not in found
                found[target] = cuts
            for target in members(self.splits[name][state]):
                assert target not in found
                found[target] = [*cuts, at]
        return found


def members(states: int) -> list[int]:
    """The places of the bits of a set, ascending."""
    return [place for place in range(states.bit_length()) if states >> place & 1]


def image(relation: Sequence[int], states: int) -> int:
    """Union of `relation[state]` over a set of states."""
    union = 0
    while states:
        lowest = states & -states
        union |= relation[lowest.bit_length() - 1]
        states ^= lowest
    return union
