"""The effect of each token on the states of a pretokenizer, for the whole vocabulary at once."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from .pretokenizer import PretokenizerAutomaton, image, members
from .trie import ROOT, ByteTrie
from .utf8 import TokenCut, cut

Opened = tuple[tuple[int, bytes], ...]
"""(automaton state, bytes of the open pretoken), ascending; only what begins an entry is kept."""


class WholePretokens:
    """A pretoken that equals an entry is that entry, so it may not end as pieces of others."""

    def __init__(self, texts: Iterable[bytes], trie: ByteTrie) -> None:
        """texts: bytes of the entries. trie: of the vocabulary, whose rows `toward` returns."""
        self._texts, self._trie = frozenset(texts), trie
        self._beginnings = {text[:end] for text in self._texts for end in range(1, len(text) + 1)}
        self._toward: dict[bytes, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._texts)

    def opened(
        self,
        before: Opened,
        begun: int,
        relation: tuple[Sequence[int], Sequence[int]],
        characters: bytes,
    ) -> Opened:
        """The open pretokens after `characters`, which join those `before` or begin some.

        begun: the set of states in which they begin one. relation: where these states lead, by
        whether the first character joins or begins.
        """
        joins, splits = relation
        opened = [(to, held + characters) for at, held in before for to in members(joins[at])]
        opened += [(to, characters) for at in members(begun) for to in members(splits[at])]
        return tuple(sorted(pair for pair in opened if pair[1] in self._beginnings))

    def closed(self, opened: Opened) -> int:
        """The set of states in which an open pretoken equals an entry."""
        return sum(1 << state for state, text in opened if text in self._texts)

    def toward(self, begun: bytes) -> list[int]:
        """Rows of tokens after which the text begun so far still begins an entry, or is one."""
        if begun not in self._toward:
            trie, rows = self._trie, set[int]()
            for text in (text for text in self._texts if text.startswith(begun)):
                node = ROOT
                for byte in text[len(begun) :]:
                    if (node := trie.child(node, byte)) < 0:
                        break
                    rows.update(trie.row_of[token] for token in trie.ends(node))
            self._toward[begun] = sorted(rows)
        return self._toward[begun]


EMPTY, IDENTITY = 0, 1
Relation = tuple[tuple[int, ...], tuple[int, ...]]


class TokenShapes:
    """Each token's characters as a relation on automaton states ("shape"); few are different.

    `shape_of` (V,) int32 is the shape of the whole characters of each row, EMPTY if there are none
    (after lead bytes: IDENTITY and what follows). A shape maps a state to the set of states after
    the characters, by whether the first one joins (`joins[shape][state]`) or splits
    (`splits[shape][state]`); EMPTY maps it to itself.
    `is_ill_formed` (V,) bool: rows that no UTF-8 text contains; `has_tail`: those that end inside a
    character.
    """

    def __init__(self, automaton: PretokenizerAutomaton, texts: Sequence[bytes]) -> None:
        """texts: bytes of each row."""
        self.automaton = automaton
        num_states = automaton.num_states
        identity = tuple(1 << state for state in range(num_states))
        self.joins: list[tuple[int, ...]] = [identity] * 2
        self.splits: list[tuple[int, ...]] = [identity, (0,) * num_states]
        self._number: dict[Relation, int] = {}
        self._next: dict[tuple[int, int], int] = {}
        cuts = [cut(text) for text in texts]
        self.is_ill_formed = np.array([cut is None for cut in cuts])
        self.cuts = [cut or TokenCut(b"", "", b"") for cut in cuts]
        self.num_lead = np.array([len(cut.lead) for cut in self.cuts])
        self.has_tail = np.array([bool(cut.tail) for cut in self.cuts])
        self.shape_of = self._walk()

    def _walk(self) -> NDArray[np.int32]:
        """Shapes of the whole characters of all rows, one character of every row at a time."""
        classes = self.automaton.classes.of_text("".join(cut.characters for cut in self.cuts))
        lengths = np.array([len(cut.characters) for cut in self.cuts])
        starts = np.cumsum(lengths) - lengths
        shape = np.where(self.num_lead > 0, IDENTITY, EMPTY)
        for i in range(int(lengths.max())):
            rows = np.flatnonzero(lengths > i)
            shape[rows] = self._step(shape[rows], classes[starts[rows] + i].astype(np.int64))
        return shape.astype(np.int32)

    def _step(self, shape: NDArray[np.int64], kind: NDArray[np.int64]) -> NDArray[np.int64]:
        keys, index = np.unique(shape << 16 | kind, return_inverse=True)
        values = [self._shape_after(key >> 16, key & 0xFFFF) for key in keys.tolist()]
        return np.array(values)[index]

    def _shape_after(self, shape: int, kind: int) -> int:
        if (shape, kind) not in self._next:
            joins, splits = self.automaton.joins[kind], self.automaton.splits[kind]
            relation = tuple(joins), tuple(splits)
            if shape != EMPTY:
                before = self.joins[shape], self.splits[shape]
                first, second = (tuple(image(joins, to) for to in side) for side in before)
                relation = first, second
            if relation not in self._number:
                self._number[relation] = len(self.joins)
                self.joins.append(relation[0])
                self.splits.append(relation[1])
            self._next[shape, kind] = self._number[relation]
        return self._next[shape, kind]
