"""The tokens that may follow a token sequence, and the state of the sequence after one of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .merges import MergeTable, PairRows
from .pretokenizer import CharacterClasses, PretokenizerAutomaton, image
from .token_shapes import EMPTY, Opened, TokenShapes, WholePretokens
from .trie import ByteTrie, cached_rows
from .utf8 import TokenCut, completions, form_length

Remainders = tuple[bytes, ...]


class AddedTokens:
    """Leftmost-longest matching of literals, as a rule on two neighboring tokens.

    A literal inside one token or two neighbors would have been cut out, so those never occur, nor
    is one matched where a longer one fits. One spread over three or more ordinary tokens is not
    excluded: both readings then count.
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

    def banned_after(self, token: int, text: bytes) -> Remainders:
        """Bytes that the next token must not start with, after `token` with bytes `text`."""
        if token in self.literals:
            return self._remainders.get(text, ())
        longest = min(len(text), self._longest - 1)
        ends = (text[len(text) - length :] for length in range(1, longest + 1))
        return tuple(rest for end in ends for rest in self._remainders.get(end, ()))


MAX_CACHED_ROWS = 1024
MAX_CACHED_STATES = 1 << 18


@dataclass(frozen=True, slots=True)
class ViabilityState:
    """The state of a canonical token sequence in its text.

    joins, splits: sets of automaton states from which the next character may join the open pretoken
    or begin one; inside a character (`partial` not empty) those for which this is already decided.
    token: the last one, None at the start. opened: open pretokens that may become whole entries.
    """

    joins: int
    splits: int
    partial: bytes = b""
    token: int | None = None
    opened: Opened = ()


class Viability:
    """The token sequences that a tokenizer makes of the beginnings of texts, token by token.

    A token follows when no pretoken border lies before it and it forms a valid pair with the last
    token, or when a border lies there; no border may lie inside it, the text must stay well-formed
    UTF-8, and it must not lead into a *dead end*, from which no sequence reaches the end of a text.
    So every sequence begins the tokenization of some text, and every complete text has exactly one,
    the tokenizer's. Rows are those of `trie`. Whether a token leads into a dead end depends on the
    states before it alone, so rows without dead ends are made for sets of states, which are few;
    then what forms no valid pair is left out.
    Source: Berglund and van der Merwe 2023, per pretoken.
    """

    def __init__(
        self,
        merges: MergeTable,
        trie: ByteTrie,
        automaton: PretokenizerAutomaton,
        added: AddedTokens,
        *,
        has_whole_pretokens: bool = False,
        spelled: CharacterClasses | None = None,
    ) -> None:
        """has_whole_pretokens: unreachable vocabulary entries replace pretokens equal to them.
        spelled: the automaton's classes, 0 for characters that no tokens spell in parts."""
        self.merges, self.trie, self.automaton, self.added = merges, trie, automaton, added
        self.spelled = automaton.classes if spelled is None else spelled
        self.pairs = PairRows(merges, trie.tokens)
        self.shapes = TokenShapes(automaton, trie.texts)
        self._tokens: list[int] = trie.tokens.tolist()
        self._added_rows = np.array([r for r, t in enumerate(self._tokens) if t in added], np.int64)
        is_plain = ~self.shapes.is_ill_formed
        for word in added.literals.values():
            is_plain &= np.array([word not in text for text in trie.texts])
        self._is_joinable = is_plain & np.array([merges.is_reachable(t) for t in self._tokens])
        is_whole = np.array([not cut.lead and not cut.tail for cut in self.shapes.cuts])
        whole = is_plain & ~self._is_joinable & has_whole_pretokens & is_whole
        self._is_startable = self._is_joinable | whole
        self._whole = WholePretokens([trie.texts[row] for row in np.flatnonzero(whole)], trie)
        self._lead_rows = np.flatnonzero(self._is_joinable & (self.shapes.num_lead > 0)).tolist()
        size = MAX_CACHED_ROWS, len(self._tokens)
        self.allowed = cached_rows(self._allowed, *size)
        """(V,) bool by row: the tokens that may follow a state."""
        self._row = cached_rows(self._row_of_states, *size)
        self.extend = lru_cache(MAX_CACHED_STATES)(self._extend)
        """The state after a token that follows a state, or None where it may not follow."""
        self._has_end: dict[ViabilityState, bool] = {}

    def start(self) -> ViabilityState:
        """Before any text."""
        return ViabilityState(0, self.automaton.begin)

    def may_end(self, state: ViabilityState) -> bool:
        """True if the text may end here: the sequence is then the tokenization of all of it."""
        return not state.partial and bool(state.splits & self.automaton.accepting)

    def _allowed(self, state: ViabilityState) -> NDArray[np.bool_]:
        if state.partial:
            without_token = ViabilityState(state.joins, state.splits, state.partial)
            row = self._valid_pairs(state, self._row(without_token))
        else:
            joining, splitting = _ways(state)
            row = self._valid_pairs(state, self._row(joining)) | self._row(splitting)
            row[self._added_rows] = self.may_end(state)
        for prefix in self._banned(state):
            row[slice(*self.trie.interval(prefix))] = False
        for _, text in state.opened:  # for these rows the states do not say all
            for row_index in self._whole.toward(text + state.partial):
                row[row_index] = self.extend(state, self._tokens[row_index]) is not None
        return row

    def _extend(self, state: ViabilityState, token: int) -> ViabilityState | None:
        after = self._step(state, token)
        return None if after is None or self._is_dead_end(after) else after

    def _is_dead_end(self, state: ViabilityState) -> bool:
        if self.may_end(state):
            return False
        if state not in self._has_end:
            if len(self._has_end) >= MAX_CACHED_STATES:
                self._has_end.clear()
            self._search_end(state)
        return not self._has_end[state]

    def _search_end(self, start: ViabilityState) -> None:
        """Go on from a state until a text may end; if none does, all that was seen is dead."""
        seen, unseen = {start}, [start]
        while unseen:
            state = unseen.pop()
            for row_index in self._candidates(state):
                after = self._step(state, self._tokens[row_index])
                if after is None:
                    continue
                if self.may_end(after) or self._has_end.get(after, False):
                    self._has_end[start] = True
                    return
                if after not in seen and after not in self._has_end:
                    seen.add(after)
                    unseen.append(after)
        self._has_end.update(dict.fromkeys(seen, False))

    def _candidates(self, state: ViabilityState) -> Iterator[int]:
        """Rows of all tokens that may be a step; outside characters, those that end first."""
        if state.partial:
            yield from self._lead_rows
            return
        for way in _ways(state):
            row, is_end = self._walkable(way)
            for part in (row & is_end, row & ~is_end):
                yield from np.flatnonzero(part).tolist()

    def _step(self, state: ViabilityState, token: int) -> ViabilityState | None:
        """The state after `token`, maybe a dead end; None where it cannot follow."""
        row = self.trie.row_of[token]
        if self.trie.texts[row].startswith(self._banned(state)):
            return None
        if token in self.added:
            may_follow = self.may_end(state)
            return ViabilityState(0, self.automaton.begin, token=token) if may_follow else None
        entering = self._entering(state, row)
        cut = self.shapes.cuts[row]
        if entering is None or bool(cut.lead) != bool(state.partial):
            return None
        entered = self._finish_character(entering, cut) if cut.lead else entering
        return None if entered is None else self._walk(entered, row)

    def _entering(self, state: ViabilityState, row: int) -> ViabilityState | None:
        """The state with what pairs and reachability leave open before a token."""
        left, token, is_joinable = state.token, self._tokens[row], bool(self._is_joinable[row])
        if is_joinable and left is not None and left not in self.added:
            merges = self.merges
            is_joinable = merges.is_reachable(left) and merges.is_valid_pair(left, token)
        joins = state.joins if is_joinable else 0
        is_startable = is_joinable if state.partial else bool(self._is_startable[row])
        splits = state.splits if is_startable else 0
        if not joins and not splits:
            return None
        return ViabilityState(joins, splits, state.partial, token, state.opened if joins else ())

    def _finish_character(self, state: ViabilityState, cut: TokenCut) -> ViabilityState | None:
        """Give the lead bytes of a token to the unfinished character."""
        partial = state.partial + cut.lead
        if len(partial) > form_length(partial[0]) or not completions(partial):
            return None
        if len(partial) < form_length(partial[0]):
            return None if cut.characters or cut.tail else replace(state, partial=partial)
        kind = int(self.spelled.of[completions(partial)[0].start])
        relation = self.automaton.joins[kind], self.automaton.splits[kind]
        return self._moved(state, relation, partial)

    def _walk(self, state: ViabilityState, row: int) -> ViabilityState | None:
        """Go through the whole characters of a token, and into its tail."""
        cut, shape = self.shapes.cuts[row], int(self.shapes.shape_of[row])
        if shape != EMPTY and not state.partial:
            relation = self.shapes.joins[shape], self.shapes.splits[shape]
            state = self._moved(state, relation, cut.characters.encode())
        if cut.tail:
            state = replace(state, partial=cut.tail)
        if state.partial:
            # Some character that starts with the partial one must be possible.
            may_go_on = any(
                image(self.automaton.joins[kind], state.joins)
                or image(self.automaton.splits[kind], state.splits)
                for kind in self.spelled.of_partial(state.partial)
            )
            return state if may_go_on else None
        if not state.joins:
            return None
        # Where the open pretoken may end: not as pieces of a whole pretoken.
        if state.token is not None and not self.merges.is_reachable(state.token):
            return ViabilityState(0, state.joins, token=state.token)
        return replace(state, splits=state.joins & ~self._whole.closed(state.opened))

    def _moved(
        self,
        state: ViabilityState,
        relation: tuple[Sequence[int], Sequence[int]],
        characters: bytes,
    ) -> ViabilityState:
        """The state after whole characters. relation: targets by joining and by splitting."""
        joins, splits = relation
        reached = image(joins, state.joins) | image(splits, state.splits)
        opened: Opened = ()
        if self._whole:
            opened = self._whole.opened(state.opened, state.splits, relation, characters)
        return ViabilityState(reached, 0, token=state.token, opened=opened)

    def _banned(self, state: ViabilityState) -> tuple[bytes, ...]:
        if state.token is None or not self.added.literals:
            return ()
        text = self.trie.texts[self.trie.row_of[state.token]]
        return self.added.banned_after(state.token, text)

    def _valid_pairs(self, state: ViabilityState, row: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """`row` without the tokens that form no valid pair with the last one."""
        token = state.token
        if token is None or token in self.added or not (state.joins or state.partial):
            return row
        return row & ~self.pairs.invalid(token)

    def _row_of_states(self, state: ViabilityState) -> NDArray[np.bool_]:
        """Tokens that go on from a state without a last token and meet no dead end; outside
        characters it is one of `_ways`."""
        if state.partial:
            row, doubtful = np.zeros(len(self._tokens), np.bool_), self._lead_rows
        else:
            row, is_end = self._walkable(state)
            doubtful = np.flatnonzero(row & ~is_end).tolist()
        for row_index in doubtful:
            row[row_index] = self._extend(state, self._tokens[row_index]) is not None
        return row

    def _walkable(self, way: ViabilityState) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(V,) bool each: tokens that one of `_ways` leads through but for their tails, and those
        after which the text may end then."""
        shapes, states = self.shapes, way.joins | way.splits
        table = shapes.splits if way.splits else shapes.joins
        mask = self._is_startable if way.splits else self._is_joinable
        reached = np.array([image(relation, states) for relation in table], np.uint64)
        row = (reached != 0)[shapes.shape_of] & mask & (shapes.num_lead == 0)
        # After a tail the text cannot end yet, whatever the characters before it allow.
        is_end = (reached & np.uint64(self.automaton.accepting) != 0)[shapes.shape_of]
        return row, is_end & ~shapes.has_tail


def _ways(state: ViabilityState) -> tuple[ViabilityState, ViabilityState]:
    """The states of one outside characters for a token that joins, and for one that splits."""
    return ViabilityState(state.joins, 0), ViabilityState(0, state.splits)
