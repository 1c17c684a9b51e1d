"""Accounts of clients: what is reserved, what is charged, and what is left."""

import asyncio
import math
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from server_accounts import client, digest, nats, policy_file, spend_all

from anchored import Pathwise
from anchored.decode.serving.accounts import store as store_file
from anchored.decode.serving.accounts.keeper import kept
from anchored.decode.serving.accounts.policy import Account, Policy
from anchored.decode.serving.accounts.store import Exhausted, Store, opened, quanta_above
from anchored.tools.commands.accounts import ApplyConfig, apply, read_policy

DAY = 86400
LIMITS = {"client/a": Account(name="a", nats=10.0), "group/g": Account(name="g", nats=6.0)}


@pytest.fixture
def store(tmp_path):
    made = Store("accounts.db", tmp_path)
    made.apply(LIMITS)
    yield made
    made.close()


@pytest.fixture
def clock(monkeypatch):
    """The system's clock, in seconds: a list of one."""
    now = [1_000_000.0]
    monkeypatch.setattr(store_file.time, "time", lambda: now[0])
    return now


def test_bounds_are_given_up_once_for_what_was_spent_rounded_up_to_quanta(store, monkeypatch):
    monkeypatch.setattr(store_file, "MOST_SETTLED", 2)
    monkeypatch.setattr(store_file, "PAGE", 2)
    store.reserve({"x": 2.0, "y": 1.0}, ["client/a", "group/g"], "server")
    store.reserve({"z": 3.0, "w": 1.0}, ["client/a"], "server")
    assert nats(store) == (0.0, 7.0, 3.0) and nats(store, "group/g") == (0.0, 3.0, 3.0)
    # Whole where nobody knows, no more than the bound, and nothing where nats came back.
    store.settle({"x": None, "z": 7.0, "unknown": 1.0, "y": 0.1, "w": -3.0})
    quanta = {"x": 2 << 32, "y": math.ceil(0.1 * 2**32), "z": 3 << 32, "w": 0}
    for again in ({"x": 0.5}, {}):
        store.settle(again)
        spent = {(charge.request_id, charge.account): charge.spent for charge in store.charges()}
        assert spent == {(name, each): quanta[name] for name, each in spent} and len(spent) == 6
    assert store.open_texts("server") == {}
    total = sum(quanta.values()) / 2**32
    assert nats(store) == (total, 0.0, 10.0 - total)
    assert nats(store, "group/g")[:2] == (total - 3.0, 0.0)


def test_texts_that_end_together_are_settled_in_one_transaction_and_each_once(
    tmp_path, monkeypatch
):
    policy = Policy(clients=(client("alice"),))
    settled, settle, may_go_on = [], Store.settle, threading.Event()
    names = [f"x-{place}" for place in range(20)]
    with kept(policy, tmp_path, tmp_path / "journal", is_synced=False) as keeper:
        asyncio.run(keeper.reserve("alice", None, dict.fromkeys(names, 1.0), Pathwise()))
        keeper._thread.submit(may_go_on.wait)  # a transaction before them
        monkeypatch.setattr(
            Store, "settle", lambda *args: settle(*args) or settled.append(len(args[1]))
        )
        for name in names:
            keeper.settle(name, 0.5)
            keeper.settle(name, None)  # the first counts
        may_go_on.set()
    assert [count for count in settled if count] == [20]
    with opened("accounts.db", tmp_path) as store:
        assert nats(store, "client/alice") == (10.0, 0.0, 990.0)


def test_nothing_is_reserved_in_any_account_where_one_has_no_room(store):
    with pytest.raises(
        Exhausted, match=r"^group/g has 6 nats left and 0 reserved, and the bound .* is 7$"
    ):
        store.reserve({"x": 3.0, "y": 4.0}, ["client/a", "group/g"], "server")
    assert nats(store) == (0.0, 0.0, 10.0) and store.open_texts("server") == {}


def after(store: Store, clock: list[float], days: float) -> None:
    """So many days pass while a server runs."""
    end = clock[0] + days * DAY
    while clock[0] < end:
        clock[0] = min(end, clock[0] + DAY / 2)
        store.policy()  # as a server looks


def test_a_period_that_ends_empties_the_account_of_all_but_what_is_reserved(clock, store):
    store.apply({"client/a": Account(name="a", nats=10.0, days=1.0)})
    ends = store.state("client/a").period_ends
    assert ends == clock[0] + DAY
    store.reserve({"x": 4.0, "y": 5.0}, ["client/a"], "server")
    store.settle({"x": 4.0})
    after(store, clock, 0.9)
    assert nats(store) == (4.0, 5.0, 1.0)
    after(store, clock, 2.6)
    assert nats(store) == (0.0, 5.0, 5.0)
    assert store.state("client/a").period_ends == ends + 3 * DAY
    store.settle({"y": 3.0})
    assert nats(store) == (3.0, 0.0, 7.0)
    assert store.sums("client/a") == {"spent": (quanta_above(3.0),) * 2, "reserved": (0, 0)}


def test_a_clock_that_jumps_begins_no_period_and_another_length_counts_from_the_next_one_on(
    clock, store
):
    store.apply({"client/a": Account(name="a", nats=10.0, days=30.0)})
    ends = store.state("client/a").period_ends
    store.reserve({"x": 10.0}, ["client/a"], "server")
    store.settle({"x": 10.0})
    for jump in (400, -400):
        clock[0] += jump * DAY
        store.policy()
        assert nats(store) == (10.0, 0.0, 0.0)
    store.apply({"client/a": Account(name="a", nats=10.0, days=7.0)})
    assert nats(store) == (10.0, 0.0, 0.0) and store.state("client/a").period_ends == ends
    after(store, clock, 30)
    assert nats(store) == (0.0, 0.0, 10.0)
    assert store.state("client/a").period_ends == ends + 7 * DAY


def test_extra_nats_are_an_operators_and_the_file_changes_its_allowance(tmp_path):
    apply(ApplyConfig(accounts=policy_file(tmp_path, alice=2.0), account="client/alice", extra=5.0))
    with opened("accounts.db", tmp_path) as store:
        assert nats(store, "client/alice") == (0.0, 0.0, 7.0)
        apply(ApplyConfig(accounts=policy_file(tmp_path, alice=3.0)))
        assert nats(store, "client/alice") == (0.0, 0.0, 8.0)


@pytest.mark.parametrize(
    ("database", "num_clients"),
    [("sqlite", 8), pytest.param("postgresql", 16, marks=pytest.mark.slow)],
)
def test_clients_of_one_account_get_all_that_it_has_and_no_more_and_wait_in_no_circle(
    tmp_path, monkeypatch, database, num_clients, request
):
    monkeypatch.setattr(store_file, "PAGE", 5)
    where = "accounts.db" if database == "sqlite" else request.getfixturevalue("postgresql")
    charged = spend_all(lambda: Store(where, tmp_path), LIMITS, num_clients)
    with opened(where, tmp_path) as store:
        spent, reserved, _ = nats(store, "group/g")
        assert reserved == 0.0 and 5.0 < spent == sum(charged) <= 6.0
        assert nats(store)[0] == spent
        assert all(store.sums(account)["spent"] == (quanta_above(spent),) * 2 for account in LIMITS)
        rows = [(charge.request_id, charge.account) for charge in store.charges()]
        assert len(rows) == len(set(rows)) == 2 * len(charged)


def test_an_account_that_bounds_every_text_takes_no_text_of_a_mean(store):
    mean = {"group/g": Account(name="g", nats=6.0, divergence="kl")}
    store.apply(mean)
    with pytest.raises(ValueError, match=r'client/a bounds every text.*divergence = "kl"'):
        store.reserve({"x": 1.0}, ["client/a", "group/g"], "server", is_mean=True)
    assert nats(store, "group/g") == (0.0, 0.0, 6.0)
    store.reserve({"x": 1.0}, ["group/g"], "server", is_mean=True)
    store.reserve({"y": 1.0}, ["client/a", "group/g"], "server")
    assert store.state("group/g").divergence == "kl"


def test_a_store_of_another_version_is_refused_in_one_line_and_not_left_open(store, tmp_path):
    with closing(sqlite3.connect(tmp_path / "accounts.db")) as connection, connection:
        connection.execute("UPDATE anchored_store SET version = 99")
    store.close()
    with pytest.raises(ValueError, match=r"accounts.db are of version 99, not of \d$") as refused:
        Store("accounts.db", tmp_path)
    open_files = {Path(file.path).name for file in psutil.Process().open_files()}
    assert refused.tb and "accounts.db" not in open_files  # its frames would keep it open


def test_a_file_that_is_wrong_is_refused_in_one_line(tmp_path):
    text = '[[clients]]\nname = "a"\nnats = 1.0\nkey_sha256 = []\n'
    for wrong, said in (
        (text.replace('"a"', '"a b"'), "letters, digits"),
        (text.replace("[]", '["a-key"]'), "64 hexadecimal digits"),
        (f"{text}days = 0.0", "days of a"),
    ):
        file = policy_file(tmp_path, wrong)
        with pytest.raises(ValueError, match=said) as error:
            read_policy(file)
        assert str(file) in str(error.value) and "\n" not in str(error.value)
    alice = client("alice")
    for clients, said in (
        ([alice, alice], "client alice is there twice"),
        ([client("alice", groups=("lab",))], r"group 'lab' of client alice is not defined in"),
        ([alice, client("bob", key_sha256=(digest("a-key"),))], "key .* is there twice"),
    ):
        with pytest.raises(ValueError, match=said):
            Policy(clients=tuple(clients))
