"""Accounts next to journals: what a check reports, and what is charged after a crash."""

import math
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from server_accounts import HEADER, client, drawn, nats, policy_file

from anchored.decode.serving.accounts import journals
from anchored.decode.serving.accounts.journals import lock_of, recover, settle_whole
from anchored.decode.serving.accounts.policy import Account
from anchored.decode.serving.accounts.store import (
    QUANTUM,
    Exhausted,
    Server,
    Store,
    opened,
    quanta_above,
)
from anchored.decode.serving.journal import JournalWriter
from anchored.decode.serving.journal_reader import JournalReader, journal_names
from anchored.durable_files import locked
from anchored.tools.commands.accounts import AccountsConfig, accounts, read_policy

VERDICT = "all charges of texts here are right, and so are the sums of accounts"


class Texts:
    """A server's texts, each of a token, in its journal and in the account of alice."""

    def __init__(self, store: Store, journal: JournalWriter) -> None:
        self.store, self.journal = store, journal

    def begin(self, text: str, spend: float, *, is_charged: bool = True) -> None:
        if is_charged:
            self.store.reserve({text: 8.0}, ["client/alice"], "server")
        self.journal.open(text, HEADER, has_stops=False)
        self.journal.steps([(text, drawn(0, spend))])

    def draw(self, text: str, spend: float, charged: float) -> None:
        self.begin(text, spend)
        self.store.settle({text: charged})


@pytest.fixture
def texts(tmp_path):
    file, journal = policy_file(tmp_path, alice=1000.0), JournalWriter(tmp_path / "journal")
    with opened("accounts.db", tmp_path) as store, closing(journal):
        store.apply(read_policy(file).accounts)
        yield Texts(store, journal)


@pytest.fixture
def checked(tmp_path, capsys):
    """Runs the command; its exit status, and the lines that it prints below the table."""

    def check() -> tuple[int, list[str]]:
        journal = (tmp_path / "journal",)
        status = accounts(AccountsConfig(accounts=tmp_path / "accounts.toml", journal=journal))
        return status, capsys.readouterr().out.splitlines()[3:]

    return check


def test_a_charge_that_is_not_what_the_journal_says_is_reported(texts, checked):
    texts.draw("x", 5.0, 0.0)
    said = "x in client/alice: 0.000000000 nats are charged, and the journal has 5.000000000"
    assert checked() == (1, [said])


def test_an_account_that_is_not_the_sum_of_its_charges_is_reported(texts, checked, tmp_path):
    texts.draw("x", 5.0, 5.0)
    with closing(sqlite3.connect(tmp_path / "accounts.db")) as connection, connection:
        connection.execute("UPDATE anchored_accounts SET spent = spent - 1")
    status, (problem,) = checked()
    assert status == 1 and problem.startswith("client/alice: spent is 5.000000000 nats, and its")
    assert problem.endswith("off by -1 quanta")


def test_charges_and_texts_without_a_partner_are_counted(texts, checked):
    texts.draw("x", 5.0, 5.0)
    texts.begin("free", 3.0, is_charged=False)
    free = "texts that no account is charged for, as of servers without accounts: 1"
    assert checked() == (0, [free, VERDICT])
    texts.journal.path.unlink()
    assert checked() == (0, ["charges of texts that no file here has: 1", VERDICT])


def test_bounds_that_are_charged_whole_and_texts_that_gave_back_or_failed_are_right(texts, checked):
    texts.draw("gave back", -5.0, -5.0)
    texts.draw("whole", 5.0, 8.0)  # the journal may lack its end
    texts.begin("failed", 5.0)
    texts.journal.fail("failed", "logits are NaN")
    texts.store.settle({"failed": 5.0})
    texts.store.reserve({"x": 8.0, "y": 8.0, "z": 8.0}, ["client/alice"], "server")
    texts.store.settle({"x": None, "y": 0.0})  # neither has begun, and z is drawn
    assert checked() == (0, [VERDICT])
    assert texts.store.state("client/alice").spent == 21.0


def test_what_a_server_does_while_accounts_and_journals_are_read_is_no_problem(
    texts, checked, monkeypatch
):
    texts.begin("x", 3.0)
    texts.begin("y", 1.0)
    states, read = Store.states, JournalReader.ended_records

    def busy_states(store: Store):
        yield from states(store)
        texts.store.settle({"x": 3.0})

    def busy_records(reader: JournalReader):
        texts.begin("z", 2.0)
        texts.store.settle({"y": 1.0})
        yield from read(reader)
        texts.store.settle({"z": 2.0})

    monkeypatch.setattr(Store, "states", lambda store: list(busy_states(store)))
    monkeypatch.setattr(JournalReader, "ended_records", busy_records)
    assert checked() == (0, [VERDICT])


def test_a_server_whose_journal_is_gone_is_charged_whole_and_files_before_it_are_not_read(tmp_path):
    folder, before = tmp_path / "journal", JournalWriter(tmp_path / "journal")
    before.open("x", HEADER, has_stops=False)
    before.steps([("x", drawn(0, 5.0))])
    before.close()
    with opened("accounts.db", tmp_path) as store:
        store.apply({"client/alice": client("alice")})

        def charged(name: str, folder: Path, text: str, bound: float) -> tuple[float, float]:
            """Nats spent and reserved once a server that had this text open was looked for."""
            store.join(Server(name, str(folder), "", True, 0, before.path.name))
            store.reserve({text: bound}, ["client/alice"], name)
            recover(store)
            return nats(store, "client/alice")[:2]

        # 1. The lock is there, and no file that it wrote: the next server charges all.
        lock_of(folder, "moved").touch()
        assert charged("moved", folder, "x", 8.0) == (8.0, 0.0)
        # 2. Nothing of it is there: an operator says so.
        assert charged("gone", tmp_path / "gone", "y", 3.0) == (8.0, 3.0)
        with pytest.raises(ValueError, match="the server must be one of gone, got other"):
            settle_whole(store, "other")
        settle_whole(store, "gone")
        assert nats(store, "client/alice")[:2] == (11.0, 0.0) and store.servers() == []
        # 3. It has begun a file, in which its text has not begun: nothing was drawn.
        lock_of(folder, "server").touch()
        JournalWriter(folder).close()
        assert charged("server", folder, "z", 8.0) == (11.0, 0.0)


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
