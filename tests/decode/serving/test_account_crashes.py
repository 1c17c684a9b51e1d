"""Accounts after a crash at any point."""

import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from server_accounts import HEADER, drawn

from anchored.decode.serving.accounts import journals
from anchored.decode.serving.accounts.journals import lock_of, recover
from anchored.decode.serving.accounts.policy import Account
from anchored.decode.serving.accounts.store import (
    QUANTUM,
    Exhausted,
    Server,
    Store,
    quanta_above,
)
from anchored.decode.serving.journal import JournalWriter
from anchored.decode.serving.journal_reader import journal_names
from anchored.durable_files import locked


class Crashes(RuleBasedStateMachine):
    """One account, one server after the other; each may end at any point without a word."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.store = Store("accounts.db", self.root)
        self.store.apply({"client/a": Account(name="a", nats=30.0)})
        self.bounds, self.drawn, self.begun, self.open, self.count = {}, {}, [], [], 0
        self._start()

    def _start(self) -> None:
        self.count += 1
        self.name = f"server-{self.count}"
        self.lock = locked(lock_of(self.root, self.name))
        self.lock.__enter__()
        boot = journals.boot_of_system()
        files = "\n".join(journal_names(self.root))  # of servers before, which are not read
        self.store.join(Server(self.name, str(self.root), boot, False, 0, files))
        self.journal = JournalWriter(self.root)

    @rule(bound=st.floats(0.1, 8.0), begins=st.booleans())
    def reserve(self, bound: float, begins: bool) -> None:
        text = f"text-{len(self.drawn)}"
        try:
            self.store.reserve({text: bound}, ["client/a"], self.name)
        except Exhausted:
            return
        self.drawn[text], self.bounds[text] = [], bound
        self.open.append(text)
        if begins:
            self.journal.open(text, HEADER, has_stops=False)
            self.begun.append(text)

    @precondition(lambda self: {*self.begun} & {*self.open})
    @rule(data=st.data(), part=st.floats(-1.0, 1.0))
    def draw(self, data, part: float) -> None:
        """A token that spends a part of what is left, or gives nats back."""
        text = data.draw(st.sampled_from([t for t in self.open if t in self.begun]))
        spend = (self.bounds[text] - math.fsum(self.drawn[text])) * part * 0.999
        spend = math.floor(spend * 2**20) / 2**20
        self.journal.steps([(text, drawn(len(self.drawn[text]), spend))])
        self.drawn[text].append(spend)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def settle(self, data) -> None:
        ended = data.draw(st.lists(st.sampled_from(self.open), min_size=1, unique=True))
        self.store.settle({text: math.fsum(self.drawn[text]) for text in ended})
        self.open = [text for text in self.open if text not in ended]

    @rule(other_boot=st.booleans())
    def crash(self, other_boot: bool) -> None:
        self.lock.__exit__(None, None, None)
        self.journal.close()
        lost = list(self.open)
        before = self.store.state("client/a")
        with pytest.MonkeyPatch.context() as patch:
            if other_boot:
                patch.setattr(journals, "boot_of_system", lambda: "another")
            recover(self.store)
        self._start()
        self.open = []
        after = self.store.state("client/a")
        assert after.reserved == 0.0 and len(self.store.servers()) == 1
        charged = after.spent - before.spent
        exact = sum(quanta_above(max(0.0, math.fsum(self.drawn[text]))) for text in lost) * QUANTUM
        if lost:
            whole = sum(quanta_above(self.bounds[text]) for text in lost) * QUANTUM
            assert charged == (whole if other_boot else exact)

    @invariant()
    def the_sum_of_what_was_drawn_is_within_what_is_charged_and_that_within_the_limit(self) -> None:
        total = math.fsum(max(0.0, math.fsum(spends)) for spends in self.drawn.values())
        state = self.store.state("client/a")
        assert total <= state.spent + state.reserved <= 30.0

    def teardown(self) -> None:
        self.lock.__exit__(None, None, None)
        self.journal.close()
        self.store.close()
        self.folder.cleanup()


Crashes.TestCase.settings = settings(
    max_examples=8, stateful_step_count=20, deadline=None, derandomize=True
)
TestCrashes = Crashes.TestCase
