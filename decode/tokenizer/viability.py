"""Which tokens may follow a token sequence, and where the sequence stands after one of them."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .merges import MergeTable, PairRows, RowCache
from .pretokenizer import PretokenizerAutomaton, image, members
from .token_shapes import EMPTY, TokenCut, TokenShapes
from .trie import ByteTrie
from .utf8 import completions, form_length

Remainders = tuple[bytes, ...]


class AddedTokens:
    """Leftmost-longest matching of literals, as a rule on two neighbouring tokens.

    A literal that lies inside one token, or begins in one and ends in the next, would have been cut
    out, so such tokens and pairs never occur; nor is a literal matched where a longer one fits.
    A literal spread over three or more ordinary tokens is not excluded: both readings then count.
    """

    def __init__(self, literals: Mapping[int, bytes]) -> None:
        """literals: bytes of each added token."""
        self.literals = dict(literals)
        self._remainders: dict[bytes, Remainders] = {}
        for text in literals.values():
            for length in range(1, len(text)):
                held = self._remainders.get(text[:length], ())
                self._remainders[text[:length]] = (*held, text[length:])
        self._longest = max(map(len, literals.values()), default=0)

    def __contains__(self, token: object) -> bool:
        return token in self.literals

    def occurs_in(self, text: bytes) -> bool:
        """Whether `text` contains a literal."""
        return any(literal in text for literal in self.literals.values())

    def banned_after(self, token: int, text: bytes) -> Remainders:
        """What the next token must not start with, behind `token` with bytes `text`."""
        if token in self.literals:
            return self._remainders.get(text, ())
        longest = min(len(text), self._longest - 1)
        ends = (text[len(text) - length :] for length in range(1, longest + 1))
        return tuple(rest for end in ends for rest in self._remainders.get(end, ()))


MAX_CACHED_ROWS = 1024
MAX_CACHED_EXTENSIONS = 1 << 18


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a canonical token sequence stands in its text.

    joins, splits: sets of automaton states from which the next character may join the open pretoken
    or begin one; inside a character (`partial` not empty) those for which this is already decided.
    openings: byte offset of the open pretoken, by state; right only where whole pretokens matter.
    token: the last one, None at the start.
    """

    joins: int
    splits: int
    openings: Mapping[int, int]
    partial: bytes = b""
    token: int | None = None


class Viability:
    """The token sequences that a tokenizer makes of the beginnings of texts, token by token.

    A token follows when no pretoken border lies before it and it forms a valid pair with the last
    token, or when a border lies there; no border may lie inside it, and the text must stay
    well-formed UTF-8. Every complete text has exactly one sequence, the tokenizer's own.
    Rows are those of `trie`. Source: Berglund and van der Merwe 2023, per pretoken.
    """

    def __init__(
        self,
        merges: MergeTable,
        trie: ByteTrie,
        automaton: PretokenizerAutomaton,
        added: AddedTokens,
        *,
        has_whole_pretokens: bool = False,
    ) -> None:
        """has_whole_pretokens: unreachable vocabulary entries stand for pretokens equal to them."""
        self.merges, self.trie, self.automaton, self.added = merges, trie, automaton, added
        self.pairs = PairRows(merges, trie.tokens)
        self.shapes = TokenShapes(automaton, trie.texts)
        tokens = trie.tokens.tolist()
        self._added_rows = np.array([row for row, t in enumerate(tokens) if t in added], np.int64)
        is_plain = ~self.shapes.is_ill_formed & self._has_no_literal()
        self._is_joinable = is_plain & np.array([merges.is_reachable(t) for t in tokens])
        whole = is_plain & ~self._is_joinable & has_whole_pretokens & self._is_whole_text()
        self._is_startable = self._is_joinable | whole
        self.whole = {trie.texts[row]: tokens[row] for row in np.flatnonzero(whole).tolist()}
        self._longest_whole = max(map(len, self.whole), default=0)
        self._lead_rows = np.flatnonzero(self.shapes.num_lead)
        self._rows = RowCache(MAX_CACHED_ROWS)
        self._extensions: dict[Hashable, Standing | None] = {}

    def _has_no_literal(self) -> NDArray[np.bool_]:
        if not self.added.literals:
            return np.ones(len(self.trie.texts), np.bool_)
        return np.array([not self.added.occurs_in(text) for text in self.trie.texts])

    def _is_whole_text(self) -> NDArray[np.bool_]:
        return np.array([not cut.lead and not cut.tail for cut in self.shapes.cuts])

    def start(self) -> Standing:
        """Before any text."""
        return Standing(0, self.automaton.begin, {0: 0})

    def may_end(self, standing: Standing) -> bool:
        """Whether the text may end here: the sequence is then the tokenisation of all of it."""
        return not standing.partial and bool(standing.splits & self.automaton.accepting)

    def allowed(self, standing: Standing) -> NDArray[np.bool_]:
        """(V,) bool by row: the tokens that may follow."""
        key = ("allowed", standing.joins, standing.splits, standing.partial, standing.token)
        return self._rows.get(key, lambda: self._allowed(standing))

    def _allowed(self, standing: Standing) -> NDArray[np.bool_]:
        if standing.partial:
            row = self._valid_pairs(standing, self._partial_row(standing))
        else:
            joining = self._valid_pairs(standing, self._row(standing.joins, is_split=False))
            row = joining | self._row(standing.splits, is_split=True)
            row[self._added_rows] = self.may_end(standing)
        for prefix in self._banned(standing):
            row[slice(*self.trie.interval(prefix))] = False
        return row

    def well_formed(self, standing: Standing) -> NDArray[np.bool_]:
        """(V,) bool by row: the tokens behind which the text is still the beginning of UTF-8."""
        key = ("well-formed", standing.partial)
        return self._rows.get(key, lambda: self._well_formed(standing.partial))

    def extend(self, standing: Standing, token: int, text: bytes | bytearray) -> Standing | None:
        """The standing behind `token`, or None where it may not follow.

        text: all bytes of the sequence, those of `token` included.
        """
        key = (standing.joins, standing.splits, standing.partial, standing.token, token)
        # Where whole pretokens matter, the text decides what a standing is, not whether there is.
        if key not in self._extensions or (self.whole and self._extensions[key] is not None):
            if len(self._extensions) >= MAX_CACHED_EXTENSIONS:
                self._extensions.clear()
            self._extensions[key] = self._extend(standing, token, text)
        return self._extensions[key]

    def _extend(self, standing: Standing, token: int, text: bytes | bytearray) -> Standing | None:
        row = self.trie.row_of[token]
        start = len(text) - len(self.trie.texts[row])
        if self._banned(standing) and text[start:].startswith(self._banned(standing)):
            return None
        if token in self.added:
            begin = Standing(0, self.automaton.begin, {0: len(text)}, token=token)
            return begin if self.may_end(standing) else None
        entering = self._entering(standing, row)
        cut = self.shapes.cuts[row]
        if entering is None or bool(cut.lead) != bool(standing.partial):
            return None
        entered = self._finish_character(entering, cut, start) if cut.lead else entering
        return None if entered is None else self._walk(entered, row, start, text)

    def _entering(self, standing: Standing, row: int) -> Standing | None:
        """The ways into a token that pairs and reachability leave open."""
        token = int(self.trie.tokens[row])
        is_joinable = bool(self._is_joinable[row]) and self._is_valid_pair(standing.token, token)
        joins = standing.joins if is_joinable else 0
        is_startable = is_joinable if standing.partial else bool(self._is_startable[row])
        splits = standing.splits if is_startable else 0
        if not joins and not splits:
            return None
        return Standing(joins, splits, standing.openings, standing.partial, token)

    def _is_valid_pair(self, left: int | None, right: int) -> bool:
        if left is None or left in self.added:
            return True
        return self.merges.is_reachable(left) and self.merges.is_valid_pair(left, right)

    def _finish_character(self, standing: Standing, cut: TokenCut, start: int) -> Standing | None:
        """Give the lead bytes of a token to the unfinished character."""
        partial = standing.partial + cut.lead
        if len(partial) > form_length(partial[0]) or not completions(partial):
            return None
        if len(partial) < form_length(partial[0]):
            return None if cut.characters or cut.tail else replace(standing, partial=partial)
        name = int(self.automaton.classes.of[completions(partial)[0].start])
        joins, splits = self.automaton.joins[name], self.automaton.splits[name]
        openings = _openings(standing, joins, splits, start - len(standing.partial))
        return Standing(_set(openings), 0, openings, token=standing.token)

    def _walk(
        self, standing: Standing, row: int, start: int, text: bytes | bytearray
    ) -> Standing | None:
        """Go through the whole characters of a token, and into its tail."""
        cut, shape = self.shapes.cuts[row], int(self.shapes.shape_of[row])
        if shape != EMPTY and not standing.partial:
            joins, splits = self.shapes.joins[shape], self.shapes.splits[shape]
            openings = _openings(standing, joins, splits, start)
            standing = Standing(_set(openings), 0, openings, token=standing.token)
        if cut.tail:
            standing = replace(standing, partial=cut.tail)
        if standing.partial:
            return standing if self._may_go_on(standing) else None
        if not standing.joins:
            return None
        return self._close(standing, text)

    def _may_go_on(self, standing: Standing) -> bool:
        """Whether some character that starts with the partial one is possible."""
        names = self.automaton.classes.of_partial(standing.partial)
        return any(
            image(self.automaton.joins[name], standing.joins)
            or image(self.automaton.splits[name], standing.splits)
            for name in names
        )

    def _close(self, standing: Standing, text: bytes | bytearray) -> Standing:
        """Decide in which states the open pretoken may end: not as pieces of a whole pretoken."""
        states, token = standing.joins, standing.token
        if token is not None and not self.merges.is_reachable(token):
            return Standing(0, states, standing.openings, standing.partial, token)
        if self.whole:
            longest = self._longest_whole
            for state, opening in standing.openings.items():
                is_short = len(text) - opening <= longest
                if is_short and bytes(text[opening:]) in self.whole:
                    states &= ~(1 << state)
        return Standing(standing.joins, states, standing.openings, standing.partial, token)

    def _banned(self, standing: Standing) -> tuple[bytes, ...]:
        if standing.token is None or not self.added.literals:
            return ()
        text = self.trie.texts[self.trie.row_of[standing.token]]
        return self.added.banned_after(standing.token, text)

    def _valid_pairs(self, standing: Standing, row: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """A copy of `row` without the tokens that form no valid pair with the last one."""
        token = standing.token
        if token is None or not standing.joins | len(standing.partial):
            return row.copy()
        return row.copy() if token in self.added else row & ~self.pairs.invalid(token)

    def _row(self, states: int, *, is_split: bool) -> NDArray[np.bool_]:
        """Tokens that begin with a character and can be walked from the states."""
        return self._rows.get((states, is_split), lambda: self._compute_row(states, is_split))

    def _compute_row(self, states: int, is_split: bool) -> NDArray[np.bool_]:
        feasible = self.shapes.feasible(states, is_split=is_split)[self.shapes.full_shape_of]
        mask = self._is_startable if is_split else self._is_joinable
        row: NDArray[np.bool_] = feasible & mask & (self.shapes.num_lead == 0)
        return row

    def _partial_row(self, standing: Standing) -> NDArray[np.bool_]:
        key = (standing.joins, standing.splits, standing.partial)
        return self._rows.get(key, lambda: self._compute_partial_row(standing))

    def _compute_partial_row(self, standing: Standing) -> NDArray[np.bool_]:
        """Tokens that go on with the unfinished character."""
        row = np.zeros(len(self.trie.tokens), np.bool_)
        for place in self._lead_rows[self._is_joinable[self._lead_rows]].tolist():
            entered = self._finish_character(standing, self.shapes.cuts[place], 0)
            row[place] = entered is not None and self._walks(entered, place)
        return row

    def _walks(self, standing: Standing, row: int) -> bool:
        if standing.partial:
            return self._may_go_on(standing)
        shape = int(self.shapes.full_shape_of[row])
        return image(self.shapes.joins[shape], standing.joins) != 0

    def _well_formed(self, partial: bytes) -> NDArray[np.bool_]:
        has_start = (self.shapes.num_lead == 0) & (not partial)
        row: NDArray[np.bool_] = ~self.shapes.is_ill_formed & has_start
        for place in self._lead_rows.tolist() if partial else ():
            cut = self.shapes.cuts[place]
            joined = partial + cut.lead
            is_whole = len(joined) == form_length(joined[0])
            is_cut = len(joined) < form_length(joined[0]) and not cut.characters and not cut.tail
            is_well_formed = not self.shapes.is_ill_formed[place]
            row[place] = is_well_formed and (is_whole or is_cut) and bool(completions(joined))
        return row


def _openings(
    standing: Standing, joins: Sequence[int], splits: Sequence[int], start: int
) -> dict[int, int]:
    """Where the open pretoken began, by the states reached; a split opens one at `start`."""
    found: dict[int, int] = {}
    for state in members(standing.joins):
        found.update(dict.fromkeys(members(joins[state]), standing.openings[state]))
    for state in members(standing.splits):
        found.update(dict.fromkeys(members(splits[state]), start))
    return found


def _set(states: Mapping[int, int]) -> int:
    return sum(1 << state for state in states)
