"""Accounts of a server's clients: what requests reserve and pay for, and what an operator meets."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from embedded_server import held, streamed
from server_accounts import ALICE, account, ask, client, nats, policy_file, serving
from sqlalchemy.exc import OperationalError
from waiting import HANG_S, until

from anchored import Anchored, Pathwise, RiskyOnly, verify
from anchored.decode.serving.accounts import keeper as keeper_file
from anchored.decode.serving.accounts.keeper import kept
from anchored.decode.serving.accounts.policy import Account, Policy
from anchored.decode.serving.accounts.store import QUANTUM, Store, opened, quanta_above
from anchored.decode.serving.engine import Refused
from anchored.decode.serving.journal import JournalWriter
from anchored.decode.serving.journal_reader import journal_ledgers
from anchored.tools.commands.accounts import AccountsConfig, accounts

RULE = Pathwise()
ONE = Policy(clients=(client("alice"),))


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
    groups = (Account(name="work", nats=100.0, **bounded),)
    policy = Policy(clients=(alice, client("bob", **bounded)), groups=groups)
    with serving(pair, tmp_path, policy, rule) as (address, _):
        named = {"seed": 3, "group": "work", **options}
        answers = [ask(address, "alice", anchored=named).json() for _ in range(2)]
        ask(address, "bob")
        spends = [answer["anchored"]["spent"] for answer in answers]
        spent = sum(quanta_above(max(0.0, nats)) for nats in spends) * QUANTUM
        shown = account(address, "alice")
        assert shown.pop("period_ends") is None
        shown_to_be = {"id": "client/alice", "limit": 25.0, "spent": spent, "reserved": 0.0}
        assert shown == {**shown_to_be, **bounded, "available": 25.0 - spent}
        refused = ask(address, "alice", anchored={"K": 26.0 - spent})
        error = refused.json()["error"]
        assert (refused.status_code, error["type"]) == (429, "budget_exhausted")
        assert error["available"] == 25.0 - spent
    ledgers = dict(journal_ledgers(tmp_path / "journal"))
    assert len({ledger.header.seed for ledger in ledgers.values()}) == len(ledgers) == 3
    assert all(ledger.certified and verify(ledger, pair).is_ok for ledger in ledgers.values())
    file = policy_file(tmp_path, '[[groups]]\nname = "work"\nnats = 100.0\n', alice=25.0, bob=1e3)
    assert accounts(AccountsConfig(accounts=file, journal=(tmp_path / "journal",))) == 0


def test_a_chat_without_a_length_shares_all_that_a_group_has_left(pair, tmp_path):
    groups = {"groups": ("lab",)}
    policy = Policy(
        clients=(client("alice", **groups), client("bob", **groups)),
        groups=(Account(name="lab", nats=90.0),),
    )
    messages = [{"role": "user", "content": "the keeper"}]
    chat = {"messages": messages, "prompt": None, "max_tokens": None}
    with serving(pair, tmp_path, policy, chat_length=40) as (address, _):
        rest = {"anchored": {"K": "available"}, "path": "/v1/chat/completions"}
        figures = ask(address, "alice", **chat, **rest).json()["anchored"]
        assert (figures["horizon"], figures["K"]) == (40, pytest.approx(45.0, abs=1e-6))
        assert account(address, "bob")["available"] == 1000.0


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


@pytest.mark.parametrize("engine", ["decoder", "vllm"])
def test_a_client_that_leaves_frees_its_row_and_pays_what_was_drawn(pair, tmp_path, engine):
    with serving(pair, tmp_path, ONE, max_waiting=0, engine=engine) as (address, server):
        with held(4), streamed(address, ALICE, anchored={"k": 0.5}) as response:
            lines = filter(None, response.iter_lines())
            chunks = [json.loads(next(lines)[6:]) for _ in range(4)]
            assert account(address, "alice")["reserved"] == 470.0
            full = ask(address, "alice", prompt=["a", "b", "c"])
            assert full.status_code == 429 and "available" not in full.json()["error"]
            cancel, has_left = server.engine.cancel, threading.Event()
            server.engine.cancel = lambda *args: (cancel(*args), has_left.set())
            response.close()
            assert has_left.wait(HANG_S)
        until(lambda: server.engine.num_running == 0)
        page = httpx.get(f"{address}/metrics", headers=ALICE, timeout=HANG_S).text
        assert 'anchored_texts_total{finish_reason="aborted"} 1.0' in page
    ((name, ledger),) = dict(journal_ledgers(tmp_path / "journal")).items()
    sent = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
    assert ledger.token_ids[:4] == sent and len(ledger.steps) < 900
    assert (name, ledger.finish_reason) == (f"{chunks[0]['id']}-0", "aborted")
    with opened("accounts.db", tmp_path) as store:
        charged = quanta_above(max(0.0, ledger.spent)) * QUANTUM
        assert nats(store, "client/alice")[:2] == (charged, 0.0)
        assert store.servers() == []


@pytest.mark.parametrize("engine", ["decoder", "vllm"])
def test_a_full_disk_charges_what_was_sent_and_lets_nothing_begin(
    pair, tmp_path, monkeypatch, engine
):
    monkeypatch.setattr("anchored.decode.vllm.async_engine.WAIT_S", 0.2)
    plain, is_full = {name: getattr(JournalWriter, name) for name in ("steps", "try_again")}, False

    def steps(journal, rows):
        nonlocal is_full
        is_full = is_full or any(step.step == 5 for _, step in rows)
        try_again(journal)
        plain["steps"](journal, rows)

    def try_again(journal):
        if is_full:
            raise OSError("No space left on device")
        plain["try_again"](journal)

    monkeypatch.setattr(JournalWriter, "steps", steps)
    monkeypatch.setattr(JournalWriter, "try_again", try_again)
    with serving(pair, tmp_path, ONE, engine=engine) as (address, _):
        with streamed(address, ALICE) as stream:
            *chunks, last = [json.loads(line[6:]) for line in stream.iter_lines() if line]
        sent = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
        assert last["error"]["message"] == "the journal cannot be written"
        assert httpx.get(f"{address}/ready", timeout=HANG_S).status_code == 503
        refused = ask(address, "alice")
        assert (refused.status_code, refused.headers["x-should-retry"]) == (503, "false")
        until(lambda: account(address, "alice")["reserved"] == 0.0)
        (ledger,) = dict(journal_ledgers(tmp_path / "journal")).values()
        assert ledger.token_ids == sent and len(sent) == 5
        charged = quanta_above(max(0.0, ledger.spent)) * QUANTUM
        assert account(address, "alice")["spent"] == charged
        is_full = False
        until(lambda: httpx.get(f"{address}/ready", timeout=HANG_S).status_code == 200)
        assert ask(address, "alice", max_tokens=4).status_code == 200


def test_what_is_reserved_may_pass_and_a_store_that_does_not_answer_is_settled_later(
    pair, tmp_path, caplog
):
    def broken(*_, **__):
        raise OperationalError("", {}, Exception("disk I/O error"))

    policy = Policy(clients=(client("alice", nats=40.0),))
    with serving(pair, tmp_path, policy) as (address, _), ThreadPoolExecutor(1) as threads:
        with pytest.MonkeyPatch.context() as patch, held() as may_go_on:
            # 1. A text is drawn, whose nats may come back.
            first = threads.submit(ask, address, "alice")
            until(lambda: account(address, "alice")["reserved"] == 28.0)
            refused = ask(address, "alice")
            assert refused.json()["error"]["type"] == "budget_reserved"
            assert refused.headers["retry-after"] == "1"
            spent = ask(address, "alice", anchored={"bank": 35.0})
            assert spent.json()["error"]["type"] == "budget_exhausted"
            assert spent.headers["x-should-retry"] == "false"
            # 2. The database does not answer any more.
            for name in ("reserve", "settle", "state"):
                patch.setattr(Store, name, broken)
            refused = ask(address, "alice")
            assert refused.status_code == 503
            assert refused.json()["error"]["type"] == "accounts_unavailable"
            shown = httpx.get(f"{address}/v1/anchored/account", headers=ALICE, timeout=HANG_S)
            assert shown.status_code == 503
            may_go_on.release(10_000)
            assert first.result().status_code == 200
            until(lambda: "1 texts are not settled yet" in caplog.text)
        # 3. It answers again: the next text that ends settles both.
        assert account(address, "alice")["reserved"] == 28.0
        second = ask(address, "alice", anchored={"k": 0.0, "bank": 5.0}).json()["anchored"]
        until(lambda: account(address, "alice")["reserved"] == 0.0)
        spends = first.result().json()["anchored"]["spent"], second["spent"]
        charged = sum(quanta_above(max(0.0, nats)) for nats in spends) * QUANTUM
        assert account(address, "alice")["spent"] == charged


def test_what_waits_for_a_store_that_is_locked_for_long_is_refused_and_reserves_nothing(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(keeper_file, "BUSY_S", 0.0)
    may_go_on = threading.Event()
    with kept(ONE, tmp_path, tmp_path / "journal", is_synced=False) as keeper:
        keeper._thread.submit(may_go_on.wait)  # a transaction before it
        try:
            with pytest.raises(Refused) as refused:
                asyncio.run(keeper.reserve("alice", None, {"x": 1.0}, RULE))
        finally:
            may_go_on.set()
    assert (refused.value.status, refused.value.more["type"]) == (503, "accounts_unavailable")
    with opened("accounts.db", tmp_path) as store:
        assert nats(store, "client/alice") == (0.0, 0.0, 1000.0)


def test_a_rule_without_a_bound_keeps_no_accounts(pair, tmp_path):
    message = "accounts need a rule with a bound: .* has none"
    with pytest.raises(ValueError, match=message), serving(pair, tmp_path, ONE, RiskyOnly()):
        pass


def test_a_key_that_is_taken_away_ends_without_a_restart(pair, tmp_path, monkeypatch):
    monkeypatch.setattr(keeper_file, "LOOK_S", 0.05)
    both = Policy(clients=(client("alice"), client("bob")))
    with serving(pair, tmp_path, both) as (address, _):
        assert ask(address, "bob", max_tokens=1).status_code == 200
        rest = Policy(clients=(client("alice", nats=7.0),))
        with opened("accounts.db", tmp_path) as store:
            store.apply(rest.accounts, rest.to_json())
        until(lambda: ask(address, "bob", max_tokens=1).status_code == 401)
        assert account(address, "alice")["limit"] == 7.0
        assert httpx.get(f"{address}/ready", timeout=HANG_S).status_code == 200  # without a key
