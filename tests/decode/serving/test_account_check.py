"""Problems that anchored accounts --journal reports, and states that are none."""

import sqlite3
from contextlib import suppress

import pytest
from server_accounts import HEADER, drawn, policy_file

from anchored.decode.serving.accounts import database as database_file
from anchored.decode.serving.accounts import recovery
from anchored.decode.serving.accounts import store as store_file
from anchored.decode.serving.accounts.recovery import lock_of, recover
from anchored.decode.serving.accounts.store import Server, Store, opened
from anchored.decode.serving.journal import JournalWriter
from anchored.decode.serving.journal_reader import JournalReader
from anchored.tools.commands.accounts import AccountsConfig, accounts, read_policy


@pytest.fixture
def store(tmp_path):
    file = policy_file(tmp_path, alice=1000.0)
    (tmp_path / "journal").mkdir()
    with opened("accounts.db", tmp_path) as made:
        made.apply(read_policy(file).accounts)
        yield made


class Texts:
    """A server's texts, each of a token, in its journal and in the account of alice."""

    def __init__(self, store: Store, tmp_path, name: str = "server", **options) -> None:
        self.store, self.name = store, name
        self.journal = JournalWriter(tmp_path / "journal", **options)

    def begin(self, text: str, spend: float, *, is_charged: bool = True) -> None:
        if is_charged:
            self.store.reserve({text: 8.0}, ["client/alice"], self.name)
        self.journal.open(text, HEADER, has_stops=False)
        self.journal.steps([(text, drawn(0, spend))])

    def draw(self, text: str, spend: float, charged: float | None = None) -> None:
        self.begin(text, spend)
        self.journal.end(text)
        self.store.settle({text: spend if charged is None else charged})


@pytest.fixture
def texts(store, tmp_path):
    return Texts(store, tmp_path)


@pytest.fixture
def checked(tmp_path, capsys):
    """Runs the command; its exit status, and the lines that it prints below the table."""

    def check() -> tuple[int, list[str]]:
        config = AccountsConfig(
            accounts=tmp_path / "accounts.toml", journal=(tmp_path / "journal",)
        )
        status = accounts(config)
        return status, capsys.readouterr().out.splitlines()[3:]

    return check


VERDICT = "all charges of texts here are right, and so are the sums of accounts"


def gone(count: int) -> list[str]:
    return [f"charges of texts that no file here has: {count}", VERDICT]


def edit(tmp_path, statement: str) -> None:
    """Change the database without the store, with the account's sum."""
    with sqlite3.connect(tmp_path / "accounts.db") as connection:
        connection.execute(statement)
        total = "(SELECT coalesce(sum(spent), 0) FROM anchored_charges)"
        connection.execute(f"UPDATE anchored_accounts SET spent = {total}")
    connection.close()


# Problems


def test_a_charge_of_nothing_for_a_text_that_spent_is_reported(texts, checked):
    texts.draw("x", 5.0, charged=0.0)
    assert checked() == (
        1,
        ["x in client/alice: 0.000000000 nats are charged, and the journal has 5.000000000"],
    )


def test_a_text_whose_charge_is_gone_is_reported(texts, tmp_path, checked):
    texts.draw("x", 5.0)
    texts.draw("y", 3.0)
    edit(tmp_path, "DELETE FROM anchored_charges WHERE request_id = 'x'")
    assert checked() == (1, ["x: the journal has 5.000000000 nats, and no account is charged"])


def test_a_charge_whose_text_is_gone_from_a_file_is_counted(texts, checked):
    texts.draw("x", 5.0)
    texts.draw("y", 3.0)
    lines = texts.journal.path.read_text().splitlines(keepends=True)
    texts.journal.path.write_text("".join(line for line in lines if '"x"' not in line))
    assert checked() == (0, gone(1))
    texts.journal.path.write_text(lines[0])
    assert checked() == (0, gone(2))


def test_an_account_that_is_not_the_sum_of_its_charges_is_reported(texts, tmp_path, checked):
    texts.draw("x", 5.0)
    edit(tmp_path, "SELECT 1")
    assert checked() == (0, [VERDICT])
    with sqlite3.connect(tmp_path / "accounts.db") as connection:
        connection.execute("UPDATE anchored_accounts SET spent = spent - 1")
    connection.close()
    status, (problem,) = checked()
    assert status == 1 and problem.startswith("client/alice: spent is 5.000000000 nats, and its")
    assert problem.endswith("off by -1 quanta")


# No problems


def test_what_a_server_does_while_accounts_are_read_is_no_problem(texts, checked, monkeypatch):
    states, running = Store.states, list("wxyz")
    for text in running:
        texts.begin(text, 3.0)

    def busy(store: Store):
        yield from states(store)
        texts.store.settle({running.pop(): 3.0})

    monkeypatch.setattr(Store, "states", lambda store: list(busy(store)))
    assert checked() == (0, [VERDICT])


def test_texts_that_begin_or_end_while_the_journal_is_read_are_no_problem(
    texts, checked, monkeypatch
):
    texts.draw("x", 5.0)
    texts.begin("y", 1.0)
    read = JournalReader.ended_records

    def busy(reader: JournalReader):
        texts.begin("z", 2.0)
        texts.store.settle({"y": 1.0})
        yield from read(reader)
        texts.store.settle({"z": 2.0})
        texts.draw("late", 4.0)

    monkeypatch.setattr(JournalReader, "ended_records", busy)
    assert checked() == (0, [VERDICT])


def test_charges_are_read_while_others_reserve(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(store_file, "PAGE", 2, raising=False)
    for name in "abcde":
        texts.draw(name, 1.0)
    monkeypatch.setattr(database_file, "BUSY_S", 0)
    with opened("accounts.db", tmp_path) as other:
        read = []
        for charge in texts.store.charges():
            other.reserve({f"0-{charge.request_id}": 1.0}, ["client/alice"], "other")
            read.append(charge.request_id)
    assert read == list("abcde")


def test_texts_of_a_server_without_accounts_are_counted_and_no_problem(
    texts, store, tmp_path, checked
):
    texts.draw("x", 5.0)
    free = Texts(store, tmp_path)
    for name in "yz":
        free.begin(name, 3.0, is_charged=False)
    free = "texts of servers without accounts, which none charges: 2"
    assert checked() == (0, [free, VERDICT])


def test_a_text_that_had_not_begun_at_a_power_cut_is_charged_whole_without_a_record(
    store, tmp_path, checked, monkeypatch
):
    monkeypatch.setattr(recovery, "boot_of_system", lambda: "this boot")
    folder = tmp_path / "journal"
    store.join(Server("server", str(folder), "the boot before", False, 0, ""))
    lock_of(folder, "server").touch()
    texts = Texts(store, tmp_path)
    texts.begin("x", 5.0)
    store.reserve({"y": 8.0}, ["client/alice"], "server")
    recover(store)
    assert store.state("client/alice").spent == 16.0
    assert checked() == (0, [VERDICT])


def test_a_full_disk_before_a_text_leaves_its_whole_bound_without_a_record(texts, checked):
    texts.store.reserve({"x": 8.0, "y": 8.0}, ["client/alice"], "server")
    texts.store.settle({"x": None})  # its first line is not whole
    texts.store.settle({"y": 0.0})  # its client has left the queue
    assert checked() == (0, [VERDICT])


def test_a_text_that_gave_back_more_than_it_spent_is_charged_nothing(texts, checked):
    texts.draw("x", -5.0)
    texts.draw("y", 3.0)
    assert checked() == (0, [VERDICT])
    assert texts.store.state("client/alice").spent == 3.0


def test_a_text_that_failed_is_charged_what_it_drew(texts, checked):
    texts.begin("x", 5.0)
    texts.journal.fail("x", "logits are NaN")
    texts.store.settle({"x": 5.0})
    assert checked() == (0, [VERDICT])


# Files that are deleted


def test_charges_whose_files_were_deleted_are_counted_and_no_problem(
    texts, store, tmp_path, checked
):
    texts.draw("x", 5.0)
    texts.draw("whole", 5.0, charged=8.0)
    texts.journal.path.unlink()
    assert checked() == (0, gone(1))
    later = Texts(store, tmp_path, "later")
    assert checked() == (0, gone(1))
    later.draw("y", 3.0)
    assert checked() == (0, gone(1))
    later.draw("z", 3.0, charged=2.0)
    status, lines = checked()
    assert status == 1 and lines[0].startswith("z in client/alice: 2.0")


def test_a_file_that_is_moved_away_meanwhile_is_no_problem(texts, checked, monkeypatch):
    texts.draw("x", 5.0)
    read = JournalReader.ended_records

    def moved(reader: JournalReader):
        yield from read(reader)
        with suppress(FileNotFoundError):
            texts.journal.path.unlink()

    monkeypatch.setattr(JournalReader, "ended_records", moved)
    assert checked() == (0, [VERDICT])
