"""The tree of token sequences that a text may turn out to be, grown byte by byte."""

from collections.abc import Iterable
from typing import NamedTuple

from ..tokenizer.trie import ROOT
from ..tokenizer.viability import ViabilityState
from ..tokenizer.vocabulary import ByteVocabulary

ROOT_NODE = 0
NO_NODE = -1


class Head(NamedTuple):
    """A node whose next token may reach beyond the text.

    prefix: the trie node of the bytes between the end of `node` and the end of the text.
    """

    node: int
    prefix: int


class Guess(NamedTuple):
    """A node ahead of the text: right if the text goes on from `start` as it spells."""

    node: int
    start: int
    spelled: bytes


class TokenTree:
    """Viable tokenizations of one growing text (Berglund and van der Merwe 2023: one per prefix).

    A node is a token sequence whose text is the first `end[node]` bytes; there is one per byte, two
    where a later character decides (white space, contractions). They are numbered as they appear,
    parents before children; node 0 is the empty sequence. `heads` are exactly the nodes whose
    next-token distribution the bytes after the text depend on. A node is *alive* while it is a head
    or an ancestor of one. `parent`, `token`, `end`, `depth` are kept for dead ones too.
    """

    def __init__(self, vocabulary: ByteVocabulary) -> None:
        self.vocabulary = vocabulary
        self.text = bytearray()
        self.parent, self.token, self.end, self.depth = [NO_NODE], [NO_NODE], [0], [0]
        self.state = {ROOT_NODE: vocabulary.viability.start()}
        self.heads = [Head(ROOT_NODE, ROOT)]
        self._children: dict[int, set[int]] = {ROOT_NODE: set()}
        self._guesses: dict[tuple[int, int], Guess] = {}
        self._trunk_end = ROOT_NODE
        self._trunk: list[int] = []

    def __len__(self) -> int:
        return len(self.parent)

    def append(self, byte: int) -> list[int]:
        """Grow the text by one byte; returns the new nodes, all of them heads.

        There may be none: a byte that begins a character need not end any viable sequence, where
        all that starts with it are longer tokens.
        Raises ValueError, and changes nothing, when no viable sequence goes on with `byte`.
        """
        self.text.append(byte)
        going_on, added = self._moved(self.heads, byte)
        trie, viability = self.vocabulary.trie, self.vocabulary.viability
        leads_on = (
            viability.allowed(self.state[node])[slice(*trie.longer(prefix))].any()
            for node, prefix in going_on
        )
        if not added and not any(leads_on):
            self.text.pop()
            raise ValueError(f"byte 0x{byte:02x} cannot follow {bytes(self.text[-16:])!r}")
        new = [self._add(*node) for node in added]
        staying = {head.node for head in going_on}
        left = [head.node for head in self.heads if head.node not in staying]
        self.heads = [*going_on, *(Head(node, ROOT) for node in new)]
        self._release(left, staying)
        if self._guesses:
            self._drop_wrong_guesses(byte)
        return new

    def guess(self, continuation: bytes) -> list[int]:
        """The nodes that `continuation` would add, numbered ahead of it, parents first.

        They become nodes of the tree when the text grows so, and die when it grows otherwise.
        Bytes that cannot follow end the guess.
        """
        length, heads, guesses = len(self.text), self.heads, list[int]()
        for byte in continuation:
            self.text.append(byte)
            heads, added = self._moved(heads, byte)
            new = [self._guess(length, *node) for node in added]
            heads = [*heads, *(Head(node, ROOT) for node in new)]
            guesses += new
            if not heads:
                break
        del self.text[length:]
        return guesses

    def is_alive(self, node: int) -> bool:
        """True if a head or a guess depends on the node."""
        return node in self.state

    def children(self, node: int) -> set[int]:
        """The alive children of a node."""
        return self._children.get(node, set())

    def trunk(self) -> list[int]:
        """Nodes below the root that all alive sequences share; the list only ever grows."""
        heads = {head.node for head in self.heads}
        while len(self._children[self._trunk_end]) == 1 and self._trunk_end not in heads:
            (self._trunk_end,) = self._children[self._trunk_end]
            self._trunk.append(self._trunk_end)
        return self._trunk

    def _moved(
        self, heads: list[Head], byte: int
    ) -> tuple[list[Head], list[tuple[int, int, ViabilityState]]]:
        """Heads that go on after the text's last byte, and the (parent, token, state) it adds."""
        trie = self.vocabulary.trie
        going_on: list[Head] = []
        added: list[tuple[int, int, ViabilityState]] = []
        for node, prefix in heads:
            if (longer := trie.child(prefix, byte)) < 0:
                continue
            for token in trie.ends(longer):
                after = self.vocabulary.viability.extend(self.state[node], token)
                if after is not None:
                    added.append((node, token, after))
            if trie.num_children[longer]:
                going_on.append(Head(node, longer))
        return going_on, added

    def _add(self, parent: int, token: int, state: ViabilityState) -> int:
        guess = self._guesses.pop((parent, token), None)
        node = self._number(parent, token, state) if guess is None else guess.node
        self._children[node] = set()
        self._children[parent].add(node)
        return node

    def _guess(self, start: int, parent: int, token: int, state: ViabilityState) -> int:
        if (parent, token) not in self._guesses:
            node = self._number(parent, token, state)
            self._guesses[parent, token] = Guess(node, start, bytes(self.text[start:]))
        return self._guesses[parent, token].node

    def _number(self, parent: int, token: int, state: ViabilityState) -> int:
        node = len(self.parent)
        self.parent.append(parent)
        self.token.append(token)
        self.end.append(len(self.text))
        self.depth.append(self.depth[parent] + 1)
        self.state[node] = state
        return node

    def _drop_wrong_guesses(self, byte: int) -> None:
        last = len(self.text) - 1
        for key, (node, start, spelled) in list(self._guesses.items()):
            # One that ends here and is right has just become a node.
            if spelled[last - start] != byte or last + 1 == start + len(spelled):
                del self._guesses[key], self.state[node]

    def _release(self, left: Iterable[int], heads: set[int]) -> None:
        """Nodes that stopped being heads die unless they have children; so may their ancestors."""
        for node in left:
            while self._children.get(node) == set() and node not in heads and node != ROOT_NODE:
                del self._children[node], self.state[node]
                self._children[self.parent[node]].remove(node)
                node = self.parent[node]
