"""Accounts of a server's clients: what requests reserve and pay for, and what an operator meets."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from embedded_server import embedded, held, posted, streamed
from server_accounts import (
    ALICE,
    HEADER,
    KEYS,
    KL,
    MEANS,
    account,
    ask,
    client,
    drawn,
    nats,
    policy_file,
    serving,
)
from sqlalchemy.exc import OperationalError
from waiting import HANG_S, until

from anchored import Anchored, Decoder, Pathwise, RiskyOnly, verify
from anchored.decode.serving.accounts import keeper as keeper_file
from anchored.decode.serving.accounts.keeper import kept
from anchored.decode.serving.accounts.policy import Group, Policy
from anchored.decode.serving.accounts.recovery import lock_of, recover, settle_whole
from anchored.decode.serving.accounts.store import QUANTUM, Server, Store, opened, quanta_above
from anchored.decode.serving.journal import JournalWriter
from anchored.decode.serving.journal_reader import journal_ledgers
from anchored.tools.commands.accounts import AccountsConfig, accounts

RULE = Pathwise()
ONE = Policy(clients=(client("alice", **MEANS),))


@pytest.mark.parametrize(
    ("rule", "options", "divergence"),
    [(Anchored(k=1.0), {}, "kl"), (Pathwise(k=1.0, bank=20.0), {"bank": 2.0}, "max")],
    ids=["anchored", "pathwise"],
)
def test_each_client_is_charged_what_its_ledgers_say_and_gets_no_more(
    pair, tmp_path, rule, options, divergence
):
    bounded = {"divergence": divergence}
    alice = client("alice", nats=25.0, may_name=("work",), **bounded)
    groups = (Group(name="work", nats=100.0, **bounded),)
    policy = Policy(clients=(alice, client("bob", **bounded)), groups=groups)
    with serving(pair, tmp_path, policy, rule) as (address, _):
        named = {"seed": 3, "group": "work", **options}
        answers = [ask(address, "alice", anchored=named) for _ in range(2)]
        ask(address, "bob")
        spends = [answer.json()["anchored"]["spent"] for answer in answers]
        spent = sum(quanta_above(max(0.0, each)) for each in spends) * QUANTUM
        shown = account(address, "alice")
        assert shown["id"] == "client/alice" and shown["spent"] == spent
        assert (shown["limit"], shown["reserved"]) == (25.0, 0.0)
        assert shown["divergence"] == divergence
        refused = ask(address, "alice", anchored={"K": 26.0 - spent})
        error = refused.json()["error"]
        assert (refused.status_code, error["type"]) == (429, "budget_exhausted")
        assert error["available"] == 25.0 - spent
        rest = ask(address, "alice", anchored={"K": "available"}).json()["anchored"]
        assert 0.0 <= 25.0 - spent - rest["K"] < 1e-6
    ledgers = dict(journal_ledgers(tmp_path / "journal"))
    assert len({ledger.header.seed for ledger in ledgers.values()}) == len(ledgers) == 4
    assert all(ledger.certified and verify(ledger, pair).is_ok for ledger in ledgers.values())
    with opened("accounts.db", tmp_path) as store:
        charged = sum(nats(store, f"client/{name}")[0] for name in KEYS)
    quanta = [quanta_above(max(0.0, ledger.spent)) for ledger in ledgers.values()]
    assert charged == sum(quanta) * QUANTUM > 0.0
    file = policy_file(tmp_path, '[[groups]]\nname = "work"\nnats = 100.0\n', alice=25.0, bob=1e3)
    assert accounts(AccountsConfig(accounts=file, journal=(tmp_path / "journal",))) == 0


def test_what_is_refused_reserves_nothing(pair, tmp_path):
    refused = [
        ({"temperature": 0}, "temperature 0 has no bound"),
        ({"anchored": {"group": "work"}}, "may not name the group 'work'"),
        ({"anchored": {"K": "all"}}, "K"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options"),
    ]
    with serving(pair, tmp_path, ONE, max_waiting=0) as (address, _):
        for body, said in refused:
            answer = ask(address, "alice", **body)
            assert answer.status_code == 400 and said in answer.json()["error"]["message"]
        assert ask(address, "nobody").status_code == 401
        with pytest.MonkeyPatch.context() as patch:  # no room in the queue
            patch.setattr(Store, "reserve", lambda *_, **__: 1 / 0)
            assert ask(address, "alice", prompt=["a", "b", "c"]).status_code == 429
        assert account(address, "alice")["available"] == 1000.0


def test_a_chat_without_a_length_and_all_that_a_group_has_left_fit_into_accounts(pair, tmp_path):
    groups = {"groups": ("lab",)}
    policy = Policy(
        clients=(client("alice", nats=2.0**21, **groups), client("bob", **groups)),
        groups=(Group(name="lab", nats=90.0),),
    )
    messages = [{"role": "user", "content": "the keeper"}]
    chat = {"messages": messages, "prompt": None, "max_tokens": None}
    with serving(pair, tmp_path, policy, RULE, chat_length=40) as (address, _):
        answer = ask(address, "alice", path="/v1/chat/completions", **chat).json()
        assert answer["anchored"]["horizon"] == 40
        left = account(address, "bob")["available"]
        assert left == 1000.0
        whole = ask(address, "alice", max_tokens=30, anchored={"K": "available"}).json()
        spent = max(0.0, answer["anchored"]["spent"])
        assert whole["anchored"]["K"] == pytest.approx((90.0 - spent) / 2, abs=1e-6)
    with embedded(Decoder(pair, RULE), tmp_path / "free", chat_length=40) as (address, _):
        chat["max_tokens"] = 1  # without accounts it has the rest of the context
        assert ask(address, "alice", path="/v1/chat/completions", **chat).status_code == 200
        for option in ({"K": "available"}, {"group": "work"}):
            answer = posted(address, prompt="a", anchored=option)
            assert answer.status_code == 400 and "accounts" in answer.json()["error"]["message"]
        assert httpx.get(f"{address}/v1/anchored/account", timeout=HANG_S).status_code == 404


@pytest.mark.parametrize("engine", ["decoder", "vllm"])
def test_a_client_that_leaves_pays_what_was_drawn_and_a_full_queue_nothing(pair, tmp_path, engine):
    nats_of_text = {"anchored": {"k": 0.5}}
    with (
        serving(pair, tmp_path, ONE, max_waiting=0, engine=engine) as (address, server),
        held(wait_s=0.1),
        streamed(address, ALICE, **nats_of_text) as response,
    ):
        lines = response.iter_lines()  # which closes the connection where nobody has it
        next(lines)
        assert account(address, "alice")["reserved"] == 450.0
        full = ask(address, "alice", prompt=["a", "b", "c"])
        assert full.status_code == 429 and "available" not in full.json()["error"]
        response.close()
        until(lambda: server.engine.num_running == 0)
    (ledger,) = dict(journal_ledgers(tmp_path / "journal")).values()
    assert len(ledger.steps) < 900
    with opened("accounts.db", tmp_path) as store:
        charged = quanta_above(max(0.0, ledger.spent)) * QUANTUM
        assert nats(store, "client/alice")[:2] == (charged, 0.0)
        assert store.servers() == []


@pytest.mark.parametrize("engine", ["decoder", "vllm"])
def test_a_full_disk_charges_what_was_sent_and_lets_nothing_begin(
    pair, tmp_path, monkeypatch, engine
):
    monkeypatch.setattr("anchored.decode.vllm.async_engine.WAIT_S", 0.2)
    is_full, sent, plain = False, 0, JournalWriter._append

    def append(writer, line):
        if is_full:
            raise OSError("No space left on device")
        plain(writer, line)

    monkeypatch.setattr(JournalWriter, "_append", append)
    policy = Policy(clients=(client("alice"),))
    with serving(pair, tmp_path, policy, RULE, engine=engine) as (address, _):
        with held(wait_s=0.1), streamed(address, ALICE) as stream:
            for line in filter(None, stream.iter_lines()):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    break
                sent += len(chunk["choices"][0]["token_ids"])
                is_full = is_full or sent >= 5
        assert chunk["error"]["message"] == "the journal cannot be written"
        assert httpx.get(f"{address}/ready", timeout=HANG_S).status_code == 503
        for _ in range(2):
            refused = ask(address, "alice")
            assert refused.status_code == 503
            assert refused.headers["x-should-retry"] == "false"
        until(lambda: account(address, "alice")["reserved"] == 0.0)
        (ledger,) = dict(journal_ledgers(tmp_path / "journal")).values()
        assert len(ledger.steps) == sent
        charged = quanta_above(max(0.0, ledger.spent)) * QUANTUM
        assert account(address, "alice")["spent"] == charged
        is_full = False
        until(lambda: httpx.get(f"{address}/ready", timeout=HANG_S).status_code == 200)
        assert ask(address, "alice").status_code == 200


def test_what_is_reserved_may_pass_and_what_is_spent_does_not(pair, tmp_path):
    policy = Policy(clients=(client("alice", nats=30.0),))
    with (
        serving(pair, tmp_path, policy, RULE) as (address, _),
        ThreadPoolExecutor(1) as threads,
        held() as may_go_on,
    ):
        first = threads.submit(ask, address, "alice")
        until(lambda: account(address, "alice")["reserved"] > 0.0)
        refused = ask(address, "alice")
        error = refused.json()["error"]
        assert (error["type"], error["reserved"]) == ("budget_reserved", 28.0)
        assert refused.headers["retry-after"] == "1"
        spent = ask(address, "alice", anchored={"bank": 25.0})
        assert spent.json()["error"]["type"] == "budget_exhausted"
        assert spent.headers["x-should-retry"] == "false"
        may_go_on.set()
        assert first.result().status_code == 200


def test_while_the_store_does_not_answer_nothing_is_drawn_and_what_ended_is_settled_later(
    pair, tmp_path, caplog
):
    def broken(*_, **__):
        raise OperationalError("", {}, Exception("disk I/O error"))

    with serving(pair, tmp_path, ONE) as (address, _), ThreadPoolExecutor(1) as threads:
        with held() as may_go_on, pytest.MonkeyPatch.context() as patch:
            first = threads.submit(ask, address, "alice")
            until(lambda: account(address, "alice")["reserved"] == 8.0)
            for name in ("reserve", "settle", "state"):
                patch.setattr(Store, name, broken)
            refused = ask(address, "alice")
            assert refused.status_code == 503
            assert refused.json()["error"]["type"] == "accounts_unavailable"
            shown = httpx.get(f"{address}/v1/anchored/account", headers=ALICE, timeout=HANG_S)
            assert shown.status_code == 503
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
    monkeypatch.setattr(keeper_file, "BUSY_S", 0.2)
    (tmp_path / "journal").mkdir()
    reserve, may_go_on, begun = Store.reserve, threading.Event(), []

    def locked(*args, **options):
        begun.append(args)
        may_go_on.wait()
        return reserve(*args, **options)

    monkeypatch.setattr(Store, "reserve", locked)

    async def reserve_all(keeper) -> list:
        calls = [keeper.reserve("alice", None, {f"x-{n}": 1.0}, KL) for n in range(3)]
        reserved = asyncio.gather(*calls, return_exceptions=True)
        while len(asyncio.all_tasks()) > 2:  # others wait for none that waits itself
            await asyncio.sleep(0.01)
        may_go_on.set()
        return await reserved

    with kept(ONE, tmp_path, tmp_path / "journal", is_synced=False) as keeper:
        first, *refusals = asyncio.run(reserve_all(keeper))
    assert first is None and len(begun) == 1
    kinds = {(refused.status, refused.more["type"]) for refused in refusals}
    assert kinds == {(503, "accounts_unavailable")}
    with opened("accounts.db", tmp_path) as store:
        assert nats(store, "client/alice") == (0.0, 1.0, 999.0)


def test_a_key_that_is_taken_away_ends_without_a_restart(pair, tmp_path, monkeypatch):
    monkeypatch.setattr(keeper_file, "LOOK_S", 0.05)
    both = Policy(clients=(client("alice"), client("bob")))
    with serving(pair, tmp_path, both, RULE) as (address, _):
        assert ask(address, "bob", max_tokens=1).status_code == 200
        rest = Policy(clients=(client("alice", nats=7.0),))
        with opened("accounts.db", tmp_path) as store:
            store.apply(rest.accounts, rest.to_json())
        until(lambda: ask(address, "bob", max_tokens=1).status_code == 401)
        assert account(address, "alice")["limit"] == 7.0
        assert httpx.get(f"{address}/ready", timeout=HANG_S).status_code == 200  # without a key


def test_a_rule_without_a_bound_keeps_no_accounts(pair, tmp_path):
    with (
        kept(ONE, tmp_path, tmp_path, is_synced=False) as keeper,
        pytest.raises(ValueError, match=r"accounts need a rule with a bound: .* has none"),
        embedded(Decoder(pair, RiskyOnly()), tmp_path, keeper=keeper),
    ):
        pass


def server_of(folder: Path, name: str, files: str = "") -> Server:
    return Server(name, str(folder), boot="", is_synced=True, joined_s=0, files=files)


def test_a_server_whose_journal_is_gone_is_charged_whole_and_files_before_it_are_not_read(
    tmp_path,
):
    folder, named = tmp_path / "journal", ["client/alice"]
    before = JournalWriter(folder)
    before.open("x", HEADER, has_stops=False)
    before.steps([("x", drawn(0, 5.0))])
    before.close()
    with opened("accounts.db", tmp_path) as store:
        store.apply(ONE.accounts)
        # 1. The lock is there, and no file that it wrote: the next server charges all.
        store.join(server_of(folder, "moved", files=before.path.name))
        lock_of(folder, "moved").touch()
        store.reserve({"x": 8.0}, named, "moved")
        recover(store)
        assert nats(store, "client/alice")[:2] == (8.0, 0.0)
        # 2. Nothing of it is there: an operator says so.
        store.join(server_of(tmp_path / "gone", "gone"))
        store.reserve({"y": 3.0}, named, "gone")
        recover(store)
        assert nats(store, "client/alice")[:2] == (8.0, 3.0)
        with pytest.raises(ValueError, match="the server must be one of gone, got other"):
            settle_whole(store, "other")
        settle_whole(store, "gone")
        assert nats(store, "client/alice")[:2] == (11.0, 0.0) and store.servers() == []
        # 3. It has begun a file, in which its text has not begun: nothing was drawn.
        store.join(server_of(folder, "server", files=before.path.name))
        lock_of(folder, "server").touch()
        JournalWriter(folder).close()
        store.reserve({"z": 8.0}, named, "server")
        recover(store)
        assert nats(store, "client/alice")[:2] == (11.0, 0.0)
