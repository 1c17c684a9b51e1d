"""Accounts of clients: what is reserved, what is charged, and what is left."""

import asyncio
import math
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
from embedded_server import embedded, held, slowed, until
from server_accounts import KEYS, account, ask, client, digest, nats, policy_file, spend_all
from sqlalchemy.exc import OperationalError
from tiny_models import never_end, tiny_llama, train_tokenizer

from anchored import Anchored, Decoder, ModelPair, Pathwise, RiskyOnly, verify
from anchored.decode.rules.rule import Rule
from anchored.decode.serving.accounts import database as database_file
from anchored.decode.serving.accounts import keeper as keeper_file
from anchored.decode.serving.accounts import store as store_file
from anchored.decode.serving.accounts.keeper import kept
from anchored.decode.serving.accounts.policy import Account, Group, Policy
from anchored.decode.serving.accounts.store import (
    QUANTUM,
    Exhausted,
    Store,
    TooOften,
    opened,
    quanta_above,
)
from anchored.decode.serving.journal_reader import journal_ledgers
from anchored.tools.commands.accounts import AccountsConfig, accounts, read_policy


@pytest.fixture
def store(tmp_path):
    made = Store("accounts.db", tmp_path)
    made.declare({"client/a": Account(name="a", nats=10.0), "group/g": Account(name="g", nats=6.0)})
    yield made
    made.close()


@pytest.fixture
def clock(monkeypatch):
    """The store's clock, in seconds: a list of one."""
    now = [1_000_000.0]
    monkeypatch.setattr(store_file.time, "time", lambda: now[0])
    return now


def test_a_bound_is_reserved_and_given_up_for_what_was_spent(store):
    store.reserve({"x": 4.0, "y": 2.5}, ["client/a"], "server")
    assert nats(store) == (0.0, 6.5, 3.5)
    store.settle({"x": 1.25})
    assert nats(store) == (1.25, 2.5, 6.25)
    store.settle({"x": 3.0})  # settled once
    store.settle({"y": None})  # not known: whole
    assert nats(store) == (3.75, 0.0, 6.25)
    store.reserve({"z": 6.25}, ["client/a"], "server")
    store.settle({"z": 7.0})  # no text spends more than its bound
    assert nats(store) == (10.0, 0.0, 0.0)


def test_texts_of_several_accounts_are_settled_at_once(store, monkeypatch):
    monkeypatch.setattr(store_file, "MOST_SETTLED", 2)
    store.reserve({"x": 2.0, "y": 1.0}, ["client/a", "group/g"], "server")
    store.reserve({"z": 3.0}, ["client/a"], "server")
    store.settle({"z": 1.5, "x": None, "unknown": 1.0, "y": 0.25})
    assert nats(store) == (3.75, 0.0, 6.25) and nats(store, "group/g") == (2.25, 0.0, 3.75)
    spent = {(charge.request_id, charge.account): charge.spent for charge in store.charges()}
    of_texts = {"x": 2.0, "y": 0.25, "z": 1.5}
    assert spent == {(name, each): quanta_above(of_texts[name]) for name, each in spent}
    assert len(spent) == 5 and store.open_texts("server") == []
    store.settle({})


def test_texts_that_end_together_are_settled_in_few_transactions(tmp_path, monkeypatch):
    policy, folder = Policy(clients=(client("alice"),)), tmp_path / "journal"
    folder.mkdir()
    settled, settle = [], Store.settle

    def counted(self, texts):
        settled.append(len(texts))
        settle(self, texts)

    monkeypatch.setattr(Store, "settle", counted)
    names = [f"x-{place}" for place in range(200)]
    with kept(policy, tmp_path, folder, is_synced=False) as keeper:
        asyncio.run(keeper.reserve("alice", None, dict.fromkeys(names, 1.0), Pathwise()))
        may_go_on = threading.Event()
        keeper._thread.submit(may_go_on.wait, 60)
        for name in names:
            keeper.settle(name, 0.5)
            keeper.settle(name, None)  # the first counts
        may_go_on.set()
    assert [count for count in settled if count] == [200]
    with opened("accounts.db", tmp_path) as store:
        assert nats(store, "client/alice") == (100.0, 0.0, 900.0)


def test_nothing_is_reserved_in_any_account_where_one_has_no_room(store):
    with pytest.raises(Exhausted, match=r"^group/g has 6 nats left, and the bound .* is 7$"):
        store.reserve({"x": 3.0, "y": 4.0}, ["client/a", "group/g"], "server")
    assert nats(store) == (0.0, 0.0, 10.0) and store.open_texts("server") == []
    store.reserve({"x": 3.0}, ["client/a", "group/g"], "server")
    store.settle({"x": 2.0})
    assert nats(store)[0] == nats(store, "group/g")[0] == 2.0


def test_what_is_charged_is_rounded_up_to_quanta_and_never_down(store):
    store.reserve({"x": 1.0, "y": 1.0}, ["client/a"], "server")
    store.settle({"x": 0.1})
    spent = nats(store)[0]
    assert 0.1 <= spent < 0.1 + QUANTUM and spent / QUANTUM == math.ceil(0.1 / QUANTUM)


def test_a_period_that_ends_empties_the_account_of_all_but_what_is_reserved(store, clock):
    day = 86400
    store.declare({"client/a": Account(name="a", nats=10.0, days=1.0)})
    began = store.state("client/a").period_ends
    clock[0] = began - 1
    store.reserve({"x": 4.0, "y": 5.0}, ["client/a"], "server")
    store.settle({"x": 4.0})
    clock[0] = began + 2.5 * day
    assert nats(store) == (0.0, 5.0, 5.0)
    assert store.state("client/a").period_ends == began + 3 * day
    store.settle({"y": 3.0})
    assert nats(store) == (3.0, 0.0, 7.0)
    clock[0] = began - 10 * day  # set back
    assert nats(store) == (3.0, 0.0, 7.0)
    store.reserve({"z": 2.0}, ["client/a"], "server")
    store.settle({"z": 1.0})
    assert nats(store) == (4.0, 0.0, 6.0)
    assert store.sums("client/a") == {"spent": (quanta_above(4.0),) * 2, "reserved": (0, 0)}


def test_a_client_has_so_many_requests_a_minute(store, clock):
    for place in range(3):
        store.reserve({f"x{place}": 0.1}, ["client/a"], "server", most_a_minute=3)
    with pytest.raises(TooOften, match="client/a may send 3 requests a minute"):
        store.reserve({"x3": 0.1}, ["client/a"], "server", most_a_minute=3)
    assert nats(store)[1] == 3 * quanta_above(0.1) * QUANTUM
    clock[0] += 60
    store.reserve({"x4": 0.1}, ["client/a"], "server", most_a_minute=3)


def test_extra_nats_are_an_operators_and_the_file_keeps_its_owner(store):
    store.set_extra("client/a", 5.0)
    store.declare({"client/a": Account(name="a", nats=2.0)})
    assert nats(store) == (0.0, 0.0, 7.0)
    with pytest.raises(KeyError):
        store.set_extra("client/nobody", 5.0)


def test_sixteen_clients_of_one_account_get_all_that_it_has_and_no_more(store, tmp_path):
    charged = spend_all(lambda: Store("accounts.db", tmp_path), 16)
    spent, reserved, _ = nats(store, "group/g")
    assert reserved == 0.0 and 5.0 < spent == sum(charged) <= 6.0
    assert nats(store)[0] == spent
    assert store.sums("group/g")["spent"] == (quanta_above(spent),) * 2


def test_a_text_that_gave_back_more_than_it_spent_is_charged_nothing(store):
    store.reserve({"x": 4.0, "y": 1.0}, ["client/a"], "server")
    store.settle({"x": -3.0, "y": -0.0})
    assert nats(store) == (0.0, 0.0, 10.0)
    assert [charge.spent for charge in store.charges()] == [0, 0]


def test_an_account_bounds_every_text_until_one_is_charged_means(clock, store):
    def bounded(account: str = "client/a") -> str:
        return store.state(account).divergence

    store.declare({"client/a": Account(name="a", nats=10.0, days=1.0)})
    store.reserve({"x": 1.0}, ["client/a", "group/g"], "server")
    assert bounded() == "max"
    store.reserve({"y": 1.0}, ["client/a"], "server", is_mean=True)
    store.reserve({"z": 1.0}, ["client/a"], "server")
    assert (bounded(), bounded("group/g")) == ("kl", "max")
    store.settle({"x": 0.5, "z": 0.5})
    clock[0] += 86400  # "y" is drawn still, and will be charged in this period
    assert bounded() == "kl"
    store.settle({"y": 0.5})
    clock[0] += 86400
    assert bounded() == "max"


BAD_POLICIES = {
    "": "clients is missing",
    "clients = []": "at least one",
    '[[clients]]\nname = "a b"\nnats = 1.0\nkey_sha256 = []': "letters, digits",
    '[[clients]]\nname = "a"\nnats = -1.0\nkey_sha256 = []': "nats of a must be",
    '[[clients]]\nname = "a"\nnats = 1e12\nkey_sha256 = []': r"in \[0, 1e.09\], got 1e.12",
    '[[clients]]\nname = "a"\nnats = 1.0\nkey_sha256 = []': "at least one digest",
    '[[clients]]\nname = "a"\nnats = 1.0\nkey_sha256 = ["a-key"]': "64 hexadecimal digits",
    '[[clients]]\nname = "a"\nnats = 1.0\ndays = 0.0\nkey_sha256 = []': "days of a",
    '[[clients]]\nname = "a"\nnats = 1.0\nkeys = []': "unknown config key clients",
}


@pytest.mark.parametrize("text", BAD_POLICIES)
def test_a_file_that_is_wrong_is_refused_in_one_line(tmp_path, text):
    file = policy_file(tmp_path, text)
    with pytest.raises(ValueError, match=BAD_POLICIES[text]) as error:
        read_policy(file)
    assert str(file) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("clients", "groups", "said"),
    [
        ([client("alice"), client("alice")], [], "client alice is there twice"),
        ([client("alice", groups=("lab",))], [], "names the group lab, which is none"),
        ([client("alice"), client("bob", key_sha256=(digest("a-key"),))], [], "key .* is there tw"),
    ],
)
def test_names_and_keys_are_there_once(clients, groups, said):
    with pytest.raises(ValueError, match=said):
        Policy(clients=tuple(clients), groups=tuple(groups))


# A server

KL = Anchored(k=1.0)


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    models = [tiny_llama(seed, max_position_embeddings=512) for seed in (1, 2)]
    for model in models:
        never_end(model)
    return ModelPair(*models, train_tokenizer())


@contextmanager
def serving(pair, folder: Path, policy: Policy, rule: Rule = KL, **options):
    decoder = Decoder(pair, rule, batch_size=2)
    with (
        kept(policy, folder, folder / "journal", is_synced=False) as keeper,
        embedded(decoder, folder / "journal", keeper=keeper, **options) as (address, server),
    ):
        yield address, server


@pytest.mark.parametrize(
    ("rule", "asked", "divergence"),
    [(Anchored(k=1.0), {}, "kl"), (Pathwise(k=1.0, bank=20.0), {"bank": 2.0}, "max")],
    ids=["anchored", "pathwise"],
)
def test_each_client_is_charged_what_its_ledgers_say_and_gets_no_more(
    pair, tmp_path, rule, asked, divergence
):
    groups = (Group(name="work", nats=100.0),)
    policy = Policy(
        clients=(client("alice", nats=25.0, may_name=("work",)), client("bob")), groups=groups
    )
    with serving(pair, tmp_path, policy, rule) as (address, _):
        wishes = {"seed": 3, "group": "work", **asked}
        answers = [ask(address, "alice", anchored=wishes) for _ in range(2)]
        ask(address, "bob")
        spends = [answer.json()["anchored"]["spent"] for answer in answers]
        spent = sum(quanta_above(max(0.0, each)) for each in spends) * QUANTUM
        shown = account(address, "alice")
        assert shown["id"] == "client/alice" and shown["spent"] == spent
        assert (shown["limit"], shown["reserved"]) == (25.0, 0.0)
        assert shown["divergence"] == account(address, "bob")["divergence"] == divergence
        refused = ask(address, "alice", anchored={"K": 26.0 - spent})
        assert refused.status_code == 429
        error = refused.json()["error"]
        assert error["type"] == "budget_exhausted" and error["available"] == 25.0 - spent
        rest = ask(address, "alice", anchored={"K": "available"}).json()["anchored"]
        assert 0.0 <= 25.0 - spent - rest["K"] < 1e-6
        both = ask(address, "alice", prompt=["a", "b"], anchored={"K": "available"})
        assert both.status_code == 400 and "of one prompt" in both.json()["error"]["message"]
    ledgers = dict(journal_ledgers(tmp_path / "journal"))
    assert len({ledger.header.seed for ledger in ledgers.values()}) == len(ledgers) == 4
    assert all(ledger.certified and verify(ledger, pair).is_ok for ledger in ledgers.values())
    with opened("accounts.db", tmp_path) as store:
        charged = sum(nats(store, f"client/{name}")[0] for name in KEYS)
    quanta = [quanta_above(max(0.0, ledger.spent)) for ledger in ledgers.values()]
    assert charged == sum(quanta) * QUANTUM > 0.0
    file = policy_file(
        tmp_path, '[[groups]]\nname = "work"\nnats = 100.0\n', alice=25.0, bob=1000.0
    )
    assert accounts(AccountsConfig(accounts=file, journal=(tmp_path / "journal",))) == 0


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"temperature": 0}, 400, "greedy"),
        ({"anchored": {"group": "work"}}, 400, "may not name the group 'work'"),
        ({"anchored": {"K": "all"}}, 400, "K"),
        ({"anchored": {"K": "available", "k": 1.0}}, 400, "k"),
    ],
    ids=str,
)
def test_what_no_account_takes_is_refused_and_reserves_nothing(pair, tmp_path, body, status, said):
    with serving(pair, tmp_path, Policy(clients=(client("alice"),))) as (address, _):
        answer = ask(address, "alice", **body)
        assert answer.status_code == status and said in answer.json()["error"]["message"]
        assert account(address, "alice")["available"] == 1000.0
        assert ask(address, "nobody").status_code == 401


def test_a_stream_whose_options_are_unknown_reserves_nothing(pair, tmp_path):
    with serving(pair, tmp_path, Policy(clients=(client("alice"),))) as (address, _):
        for options in ({"include_obfuscation": True}, {"include_usage": 1}):
            answer = ask(address, "alice", stream=True, stream_options=options)
            assert answer.status_code == 400
        assert account(address, "alice")["available"] == 1000.0


def test_a_request_that_finds_no_room_reserves_nothing(pair, tmp_path, monkeypatch):
    with serving(pair, tmp_path, Policy(clients=(client("alice"),)), max_waiting=0) as (address, _):
        reserved = []
        monkeypatch.setattr(Store, "reserve", lambda *_, **__: reserved.append(1))
        assert ask(address, "alice", prompt=["a", "b", "c"]).status_code == 429
        assert not reserved


def test_all_that_is_left_is_asked_for_within_the_largest_k(pair, tmp_path):
    policy = Policy(clients=(client("alice", nats=2.0**21),))
    with serving(pair, tmp_path, policy) as (address, _):
        rest = ask(address, "alice", anchored={"K": "available"})
        assert rest.json()["anchored"]["K"] == 2.0**20


def test_a_client_that_leaves_pays_what_was_drawn_and_a_full_queue_nothing(pair, tmp_path):
    policy = Policy(clients=(client("alice"),))
    with serving(pair, tmp_path, policy, max_waiting=0) as (address, server):
        headers = {"authorization": f"Bearer {KEYS['alice']}"}
        body = {"prompt": "the keeper", "max_tokens": 400, "stream": True, "anchored": {"k": 0.5}}
        url = f"{address}/v1/completions"
        with (
            slowed(server),
            httpx.stream("POST", url, json=body, headers=headers, timeout=60) as response,
        ):
            lines = response.iter_lines()  # which closes the connection where nobody has it
            next(lines)
            assert account(address, "alice")["reserved"] == 200.0
            full = ask(address, "alice", prompt=["a", "b", "c"])
            assert full.status_code == 429 and "available" not in full.json()["error"]
    (ledger,) = dict(journal_ledgers(tmp_path / "journal")).values()
    with opened("accounts.db", tmp_path) as store:
        assert nats(store, "client/alice")[:2] == (quanta_above(ledger.spent) * QUANTUM, 0.0)
        assert store.servers() == []


def test_while_the_store_does_not_answer_nothing_is_drawn_and_what_ended_is_settled_later(
    pair, tmp_path, monkeypatch, caplog
):
    def broken(*_):
        raise OperationalError("", {}, Exception("disk I/O error"))

    with serving(pair, tmp_path, Policy(clients=(client("alice"),))) as (address, server):
        with held(server) as may_go_on, ThreadPoolExecutor(1) as threads:
            first = threads.submit(ask, address, "alice", max_tokens=8)
            until(lambda: account(address, "alice")["reserved"] == 8.0)
            with monkeypatch.context() as patch:
                patch.setattr(store_file, "_current", broken)
                refused = ask(address, "alice")
                assert refused.status_code == 503
                assert refused.json()["error"]["type"] == "accounts_unavailable"
                headers = {"authorization": f"Bearer {KEYS['alice']}"}
                url = f"{address}/v1/anchored/account"
                assert httpx.get(url, headers=headers, timeout=60).status_code == 503
                may_go_on.set()
                assert first.result().status_code == 200
                until(lambda: "1 texts are not settled yet" in caplog.text)
        assert account(address, "alice")["reserved"] == 8.0
        second = ask(address, "alice").json()["anchored"]
        until(lambda: account(address, "alice")["reserved"] == 0.0)
        spent = first.result().json()["anchored"]["spent"], second["spent"]
        assert account(address, "alice")["spent"] == sum(map(quanta_above, spent)) * QUANTUM


def test_a_store_that_is_locked_for_long_lets_no_request_wait_for_all_before_it(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(database_file, "BUSY_S", 1)
    monkeypatch.setattr(keeper_file, "BUSY_S", 1)
    policy, folder = Policy(clients=(client("alice"),)), tmp_path / "journal"
    folder.mkdir()

    async def ask_all(keeper) -> list:
        asked = [keeper.reserve("alice", None, {f"x-{place}": 1.0}, KL) for place in range(8)]
        return await asyncio.gather(*asked, return_exceptions=True)

    with (
        kept(policy, tmp_path, folder, is_synced=False) as keeper,
        closing(sqlite3.connect(tmp_path / "accounts.db", isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        began_s = time.monotonic()
        refusals = asyncio.run(ask_all(keeper))
        assert time.monotonic() - began_s < 5.0
        assert {(refused.status, refused.more["type"]) for refused in refusals} == {
            (503, "accounts_unavailable")
        }
        other.execute("ROLLBACK")
        keeper.close()
    with opened("accounts.db", tmp_path) as store:
        assert nats(store, "client/alice") == (0.0, 0.0, 1000.0)


def test_a_server_without_accounts_names_what_needs_them(pair, tmp_path):
    decoder = Decoder(pair, Anchored(k=1.0))
    with embedded(decoder, tmp_path / "journal") as (address, _):
        for wish in ({"K": "available"}, {"group": "work"}):
            answer = httpx.post(
                f"{address}/v1/completions", json={"prompt": "a", "anchored": wish}, timeout=60
            )
            assert answer.status_code == 400 and "accounts" in answer.json()["error"]["message"]
        assert httpx.get(f"{address}/v1/anchored/account").status_code == 404


def test_a_rule_without_a_bound_keeps_no_accounts(pair, tmp_path):
    policy = Policy(clients=(client("alice"),))
    with (
        kept(policy, tmp_path, tmp_path, is_synced=False) as keeper,
        pytest.raises(ValueError, match=r"accounts need a rule with a bound: .* has none"),
        embedded(Decoder(pair, RiskyOnly()), tmp_path, keeper=keeper),
    ):
        pass
