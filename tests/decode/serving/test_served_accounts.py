"""Accounts of a server's clients: what their requests reserve, and what they pay for."""

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pytest
from embedded_server import embedded, held, slowed
from server_accounts import KEYS, account, ask, client, nats, policy_file, serving
from sqlalchemy.exc import OperationalError
from waiting import HANG_S, until

from anchored import Anchored, Decoder, Pathwise, RiskyOnly, verify
from anchored.decode.serving.accounts import database as database_file
from anchored.decode.serving.accounts import keeper as keeper_file
from anchored.decode.serving.accounts import store as store_file
from anchored.decode.serving.accounts.keeper import kept
from anchored.decode.serving.accounts.policy import Group, Policy
from anchored.decode.serving.accounts.store import (
    QUANTUM,
    Store,
    opened,
    quanta_above,
)
from anchored.decode.serving.journal_reader import journal_ledgers
from anchored.tools.commands.accounts import AccountsConfig, accounts

KL = Anchored(k=1.0)
MEANS = {"divergence": "kl"}
"""An account of a server with the paper's budget."""


@pytest.mark.parametrize(
    ("rule", "asked", "divergence"),
    [(Anchored(k=1.0), {}, "kl"), (Pathwise(k=1.0, bank=20.0), {"bank": 2.0}, "max")],
    ids=["anchored", "pathwise"],
)
def test_each_client_is_charged_what_its_ledgers_say_and_gets_no_more(
    pair, tmp_path, rule, asked, divergence
):
    groups = (Group(name="work", nats=100.0, divergence=divergence),)
    bounded = {"divergence": divergence}
    alice = client("alice", nats=25.0, may_name=("work",), **bounded)
    policy = Policy(clients=(alice, client("bob", **bounded)), groups=groups)
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
        assert both.status_code == 400 and "of one text" in both.json()["error"]["message"]
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
    with serving(pair, tmp_path, Policy(clients=(client("alice", **MEANS),))) as (address, _):
        answer = ask(address, "alice", **body)
        assert answer.status_code == status and said in answer.json()["error"]["message"]
        assert account(address, "alice")["available"] == 1000.0
        assert ask(address, "nobody").status_code == 401


def test_a_stream_whose_options_are_unknown_reserves_nothing(pair, tmp_path):
    with serving(pair, tmp_path, Policy(clients=(client("alice", **MEANS),))) as (address, _):
        for options in ({"include_obfuscation": True}, {"include_usage": 1}):
            answer = ask(address, "alice", stream=True, stream_options=options)
            assert answer.status_code == 400
        assert account(address, "alice")["available"] == 1000.0


def test_a_request_that_finds_no_room_reserves_nothing(pair, tmp_path, monkeypatch):
    with serving(pair, tmp_path, Policy(clients=(client("alice", **MEANS),)), max_waiting=0) as (
        address,
        _,
    ):
        reserved = []
        monkeypatch.setattr(Store, "reserve", lambda *_, **__: reserved.append(1))
        assert ask(address, "alice", prompt=["a", "b", "c"]).status_code == 429
        assert not reserved


def test_all_that_is_left_is_asked_for_within_the_largest_k(pair, tmp_path):
    policy = Policy(clients=(client("alice", nats=2.0**21, **MEANS),))
    with serving(pair, tmp_path, policy) as (address, _):
        rest = ask(address, "alice", anchored={"K": "available"})
        assert rest.json()["anchored"]["K"] == 2.0**20


@pytest.mark.parametrize("engine", ["decoder", "vllm"])
def test_a_client_that_leaves_pays_what_was_drawn_and_a_full_queue_nothing(pair, tmp_path, engine):
    policy = Policy(clients=(client("alice", **MEANS),))
    with serving(pair, tmp_path, policy, max_waiting=0, engine=engine) as (address, server):
        headers = {"authorization": f"Bearer {KEYS['alice']}"}
        body = {"prompt": "the keeper", "max_tokens": 400, "stream": True, "anchored": {"k": 0.5}}
        url = f"{address}/v1/completions"
        with (
            slowed(server),
            httpx.stream("POST", url, json=body, headers=headers, timeout=HANG_S) as response,
        ):
            lines = response.iter_lines()  # which closes the connection where nobody has it
            next(lines)
            assert account(address, "alice")["reserved"] == 200.0
            full = ask(address, "alice", prompt=["a", "b", "c"])
            assert full.status_code == 429 and "available" not in full.json()["error"]
    (ledger,) = dict(journal_ledgers(tmp_path / "journal")).values()
    assert len(ledger.steps) < 400
    with opened("accounts.db", tmp_path) as store:
        assert nats(store, "client/alice")[:2] == (quanta_above(ledger.spent) * QUANTUM, 0.0)
        assert store.servers() == []


def test_while_the_store_does_not_answer_nothing_is_drawn_and_what_ended_is_settled_later(
    pair, tmp_path, monkeypatch, caplog
):
    def broken(*_):
        raise OperationalError("", {}, Exception("disk I/O error"))

    with serving(pair, tmp_path, Policy(clients=(client("alice", **MEANS),))) as (address, server):
        with held(server) as may_go_on, ThreadPoolExecutor(1) as threads:
            first = threads.submit(ask, address, "alice", max_tokens=8)
            until(lambda: account(address, "alice")["reserved"] == 8.0)
            with monkeypatch.context() as patch:
                patch.setattr(store_file, "_row", broken)
                refused = ask(address, "alice")
                assert refused.status_code == 503
                assert refused.json()["error"]["type"] == "accounts_unavailable"
                headers = {"authorization": f"Bearer {KEYS['alice']}"}
                url = f"{address}/v1/anchored/account"
                assert httpx.get(url, headers=headers, timeout=HANG_S).status_code == 503
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
    policy, folder = Policy(clients=(client("alice", **MEANS),)), tmp_path / "journal"
    folder.mkdir()
    reserve, begun = store_file.Store.reserve, []
    monkeypatch.setattr(
        store_file.Store, "reserve", lambda *a, **more: begun.append(a) or reserve(*a, **more)
    )

    async def ask_all(keeper) -> list:
        asked = [keeper.reserve("alice", None, {f"x-{place}": 1.0}, KL) for place in range(8)]
        return await asyncio.gather(*asked, return_exceptions=True)

    with (
        kept(policy, tmp_path, folder, is_synced=False) as keeper,
        closing(sqlite3.connect(tmp_path / "accounts.db", isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        refusals = asyncio.run(ask_all(keeper))
        assert 0 < len(begun) < len(refusals)  # others wait for none that waits itself
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
                f"{address}/v1/completions", json={"prompt": "a", "anchored": wish}, timeout=HANG_S
            )
            assert answer.status_code == 400 and "accounts" in answer.json()["error"]["message"]
        assert httpx.get(f"{address}/v1/anchored/account", timeout=HANG_S).status_code == 404


def test_a_rule_without_a_bound_keeps_no_accounts(pair, tmp_path):
    policy = Policy(clients=(client("alice", **MEANS),))
    with (
        kept(policy, tmp_path, tmp_path, is_synced=False) as keeper,
        pytest.raises(ValueError, match=r"accounts need a rule with a bound: .* has none"),
        embedded(Decoder(pair, RiskyOnly()), tmp_path, keeper=keeper),
    ):
        pass
