"""Problems that anchored accounts --journal reports, and states that are none."""

import sqlite3
from contextlib import closing

import pytest
from server_accounts import HEADER, drawn, policy_file

from anchored.decode.serving.accounts.store import Store, opened
from anchored.decode.serving.journal import JournalWriter
from anchored.decode.serving.journal_reader import JournalReader
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
