"""Accounts after a crash at any point, and in another database."""

import math
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from server_accounts import HEADER, drawn, nats, spend_all

from anchored.decode.serving.accounts import recovery
from anchored.decode.serving.accounts import store as store_file
from anchored.decode.serving.accounts.policy import Account
from anchored.decode.serving.accounts.recovery import lock_of, recover
from anchored.decode.serving.accounts.store import (
    QUANTUM,
    Exhausted,
    Server,
    Store,
    opened,
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
        self.bounds: dict[str, float] = {}
        self.drawn: dict[str, list[float]] = {}
        self.begun: list[str] = []
        self.open: list[str] = []
        self.count = 0
        self._start()

    def _start(self) -> None:
        self.count += 1
        self.name = f"server-{self.count}"
        self.lock = locked(lock_of(self.root, self.name))
        self.lock.__enter__()
        boot = recovery.boot_of_system()
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
                patch.setattr(recovery, "boot_of_system", lambda: "another")
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


@pytest.mark.slow
def test_clients_of_one_account_in_postgresql_get_all_that_it_has_and_no_more(
    postgresql, tmp_path, monkeypatch
):
    monkeypatch.setattr(store_file, "PAGE", 5)
    with opened(postgresql, tmp_path) as store:
        limits = {"client/a": Account(name="a", nats=10.0), "group/g": Account(name="g", nats=6.0)}
        store.apply(limits)
        charged = spend_all(lambda: Store(postgresql, tmp_path), 16)
        spent, reserved, _ = nats(store, "group/g")
        assert reserved == 0.0 and 5.0 < spent == sum(charged) <= 6.0
        assert nats(store)[0] == spent
        assert all(store.sums(account)["spent"] == (quanta_above(spent),) * 2 for account in limits)
        rows = [(charge.request_id, charge.account) for charge in store.charges()]
        assert len(rows) == len(set(rows)) == 2 * len(charged)


@pytest.mark.slow
def test_servers_that_start_at_once_and_settle_many_texts_wait_for_each_other_in_no_circle(
    postgresql, tmp_path
):
    names = [f"client/{letter}" for letter in "abcd"]
    begin = threading.Barrier(8)

    def serve(place: int) -> None:
        order = names[place % 4 :] + names[: place % 4]  # each server's first text of another one
        begin.wait()
        with opened(postgresql, tmp_path) as store:
            store.apply({name: Account(name=name[-1], nats=100.0) for name in names})
            for turn in range(20):
                texts = {f"{turn}-{place}-{n}": name for n, name in enumerate(order)}
                for text, name in texts.items():
                    store.reserve({text: 1.0}, [name], f"server-{place}")
                store.settle(dict.fromkeys(texts, 0.5))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(serve, range(8)))
    with opened(postgresql, tmp_path) as store:
        assert [nats(store, name) for name in names] == [(80.0, 0.0, 20.0)] * 4
