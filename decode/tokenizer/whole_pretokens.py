"""Vocabulary entries that stand for a whole pretoken though no merges make them: ignore_merges."""

from collections.abc import Iterable, Sequence

from .pretokenizer import members
from .trie import ROOT, ByteTrie

Opened = tuple[tuple[int, bytes], ...]
"""(automaton state, bytes of the open pretoken's characters), ascending; only what begins an entry
is kept."""


class WholePretokens:
    """A pretoken that equals an entry is that entry, so it may not end as pieces of others."""

    def __init__(self, texts: Iterable[bytes], trie: ByteTrie) -> None:
        """texts: bytes of the entries. trie: of the vocabulary, whose rows `toward` returns."""
        self._texts, self._trie = frozenset(texts), trie
        self._beginnings = {text[:end] for text in self._texts for end in range(1, len(text) + 1)}
        self._toward: dict[bytes, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._texts)

    def __contains__(self, text: object) -> bool:
        return text in self._texts

    def opened(
        self,
        before: Opened,
        begun: int,
        relation: tuple[Sequence[int], Sequence[int]],
        characters: bytes,
    ) -> Opened:
        """The open pretokens behind `characters`, which join those `before` or begin some.

        begun: the set of states in which they begin one. relation: where these states lead, by
        whether the first character joins or begins.
        """
        joins, splits = relation
        found = [(to, held + characters) for at, held in before for to in members(joins[at])]
        found += [(to, characters) for at in members(begun) for to in members(splits[at])]
        return tuple(sorted(pair for pair in found if pair[1] in self._beginnings))

    def closed(self, opened: Opened) -> int:
        """The set of states in which an open pretoken equals an entry."""
        return sum(1 << state for state, text in opened if text in self._texts)

    def toward(self, begun: bytes) -> list[int]:
        """Rows of the tokens behind which `begun` still begins an entry, or is one."""
        if begun not in self._toward:
            rests = (text[len(begun) :] for text in self._texts if text.startswith(begun))
            self._toward[begun] = sorted({row for rest in rests for row in self._rows_along(rest)})
        return self._toward[begun]

    def _rows_along(self, text: bytes) -> Iterable[int]:
        """Rows of the tokens with which `text` begins."""
        trie, node = self._trie, ROOT
        for byte in text:
            if (node := trie.child(node, byte)) < 0:
                return
            yield from range(int(trie.low[node]), int(trie.low[node] + trie.num_ends[node]))
