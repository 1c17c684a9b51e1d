"""What an operator meets: full disks, clients that send nothing, accounts that change."""

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from embedded_server import embedded, held
from server_accounts import HEADER, KEYS, account, ask, client, drawn, nats, serving
from stand_in_llm import stand_in_engine
from waiting import HANG_S, until

from anchored import Anchored, AnchoredError, Decoder, Pathwise
from anchored.decode.serving import http
from anchored.decode.serving.accounts import keeper as keeper_file
from anchored.decode.serving.accounts.policy import Group, Policy
from anchored.decode.serving.accounts.recovery import lock_of, recover, settle_whole
from anchored.decode.serving.accounts.store import Server, opened
from anchored.decode.serving.journal import JournalWriter
from anchored.decode.serving.journal_reader import JournalReader, journal_ledgers

ALICE = {"authorization": f"Bearer {KEYS['alice']}"}
CHAT = {"messages": [{"role": "user", "content": "the keeper"}], "prompt": None, "max_tokens": None}
RULE = Pathwise()


def test_a_chat_without_a_length_fits_into_an_account(pair, tmp_path, monkeypatch):
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    monkeypatch.setattr(pair.tokenizer, "chat_template", template)
    policy = Policy(clients=(client("alice", nats=100.0),))
    with serving(pair, tmp_path, policy, RULE, chat_length=40) as (address, _):
        answer = ask(address, "alice", path="/v1/chat/completions", **CHAT).json()
        assert answer["anchored"]["horizon"] == 40 and answer["anchored"]["rule"] == "pathwise"
    with embedded(Decoder(pair, RULE), tmp_path / "free", chat_length=40) as (address, _):
        answer = ask(address, "alice", path="/v1/chat/completions", **CHAT).json()
        assert answer["anchored"]["horizon"] > 400


def test_an_engine_whose_journal_is_elsewhere_ends_the_server_before_it_answers(pair, tmp_path):
    (tmp_path / "here").mkdir()
    sizes = {"max_length": None, "max_waiting": 1}
    engine = stand_in_engine(Decoder(pair, RULE), tmp_path / "there", **sizes)
    engine._reader = JournalReader(tmp_path / "here")
    with pytest.raises(AnchoredError, match="need one file system"):
        asyncio.run(engine.start(lambda: None))
    asyncio.run(engine.stop())


@pytest.mark.parametrize("engine", ["decoder", "vllm"])
def test_a_full_disk_charges_what_was_sent_and_lets_nothing_begin(
    pair, tmp_path, monkeypatch, engine
):
    monkeypatch.setattr("anchored.decode.vllm.async_engine.WAIT_S", 0.2)
    is_full = False
    plain = JournalWriter._append

    def append(writer, line):
        if is_full:
            raise OSError("No space left on device")
        plain(writer, line)

    monkeypatch.setattr(JournalWriter, "_append", append)
    policy, sent = Policy(clients=(client("alice"),)), 0
    with serving(pair, tmp_path, policy, RULE, engine=engine) as (address, _):
        body = {"prompt": "the keeper", "max_tokens": 400, "stream": True, "return_token_ids": True}
        url = f"{address}/v1/completions"
        with httpx.stream("POST", url, json=body, headers=ALICE, timeout=HANG_S) as stream:
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
        assert account(address, "alice")["spent"] == pytest.approx(ledger.spent, abs=1e-6)
        is_full = False
        until(lambda: httpx.get(f"{address}/ready", timeout=HANG_S).status_code == 200)
        assert ask(address, "alice").status_code == 200


def test_what_is_reserved_may_pass_and_what_is_spent_does_not(pair, tmp_path):
    policy = Policy(clients=(client("alice", nats=30.0),))
    with (
        serving(pair, tmp_path, policy, RULE) as (address, server),
        ThreadPoolExecutor(1) as threads,
        held(server) as may_go_on,
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


def test_all_that_is_available_of_a_group_is_a_clients_share(pair, tmp_path):
    groups = {"groups": ("lab",)}
    policy = Policy(
        clients=(client("alice", **groups), client("bob", **groups)),
        groups=(Group(name="lab", nats=50.0),),
    )
    with serving(pair, tmp_path, policy, RULE) as (address, _):
        whole = ask(address, "alice", max_tokens=200, anchored={"K": "available"}).json()
        assert whole["anchored"]["K"] == pytest.approx(25.0, abs=1e-6)


def test_a_key_that_is_taken_away_ends_without_a_restart(
    pair,
    tmp_path,
    monkeypatch,
):
    monkeypatch.setattr(keeper_file, "LOOK_S", 0.05)
    both = Policy(clients=(client("alice"), client("bob")))
    with serving(pair, tmp_path, both, RULE) as (address, _):
        assert ask(address, "bob").status_code == 200
        rest = Policy(clients=(client("alice", nats=7.0),))
        with opened("accounts.db", tmp_path) as store:
            store.apply(rest.accounts, rest.to_json())
        until(lambda: ask(address, "bob").status_code == 401)
        assert account(address, "alice")["limit"] == 7.0
        assert httpx.get(f"{address}/ready", timeout=HANG_S).status_code == 200  # without a key


def server_of(folder: Path, name: str, **changes) -> Server:
    fields = {"boot": "", "is_synced": True, "joined_s": 0, "files": ""}
    return Server(name, str(folder), **{**fields, **changes})


def test_a_server_whose_journal_is_gone_is_charged_whole(tmp_path):
    policy, folder = Policy(clients=(client("alice"),)), tmp_path / "journal"
    folder.mkdir()
    with opened("accounts.db", tmp_path) as store:
        store.apply(policy.accounts)
        # 1. The lock is there, and no file that it wrote: the next server charges all.
        old = JournalWriter(folder)
        old.close()
        store.join(server_of(folder, "moved", files=old.path.name))
        lock_of(folder, "moved").touch()
        store.reserve({"x": 8.0}, ["client/alice"], "moved")
        recover(store)
        assert nats(store, "client/alice")[:2] == (8.0, 0.0)
        # 2. Nothing of it is there: an operator says so.
        store.join(server_of(tmp_path / "gone", "gone"))
        store.reserve({"y": 3.0}, ["client/alice"], "gone")
        recover(store)
        assert nats(store, "client/alice")[:2] == (8.0, 3.0)
        with pytest.raises(ValueError, match="the server must be one of gone, got other"):
            settle_whole(store, "other")
        settle_whole(store, "gone")
        assert nats(store, "client/alice")[:2] == (11.0, 0.0) and store.servers() == []


def test_files_from_before_a_server_are_not_read_for_it(tmp_path):
    policy, folder = Policy(clients=(client("alice"),)), tmp_path / "journal"
    before = JournalWriter(folder)
    before.open("x", HEADER, has_stops=False)
    before.steps([("x", drawn(0, 5.0))])
    before.close()
    with opened("accounts.db", tmp_path) as store:
        store.apply(policy.accounts)
        store.join(server_of(folder, "server", files=before.path.name))
        lock_of(folder, "server").touch()
        JournalWriter(folder).close()
        store.reserve({"x": 8.0}, ["client/alice"], "server")
        recover(store)
        assert nats(store, "client/alice")[:2] == (0.0, 0.0)


def half_request(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=HANG_S)
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: loc")
    return connection


def test_a_client_that_sends_half_a_head_is_closed(pair, tmp_path, monkeypatch):
    monkeypatch.setattr(http, "HEAD_S", 0.2)
    with embedded(Decoder(pair, Anchored(k=1.0)), tmp_path) as (address, _):
        with half_request(address) as silent, half_request(address) as slow:
            assert silent.recv(100) == b""
            slow.close()
        monkeypatch.undo()  # or a client of a busy machine is too slow
        assert httpx.get(f"{address}/health", timeout=HANG_S).status_code == 200


def test_an_idle_connection_outlives_the_clients_which_would_else_ask_while_it_is_closed(
    pair, tmp_path
):
    with embedded(Decoder(pair, Anchored(k=1.0)), tmp_path) as (_, server):
        assert server._http.config.timeout_keep_alive > httpx.Limits().keepalive_expiry


def test_connections_beyond_the_limit_are_closed_and_said_once(pair, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(http, "HEAD_S", 600.0)
    monkeypatch.setattr(http.PatientProtocol, "last_said_s", -http.QUIET_S)
    decoder = Decoder(pair, Anchored(k=1.0))
    with (
        embedded(decoder, tmp_path, max_connections=4) as (address, server),
        ExitStack() as stack,
    ):
        open_ones = server._http.server_state.connections
        until(lambda: not open_ones)  # those of the start
        for _ in range(4):
            stack.enter_context(half_request(address))
        for _ in range(2):
            with half_request(address) as refused, suppress(ConnectionError):
                assert refused.recv(100) == b""
        stack.close()
        until(lambda: not open_ones)
        assert httpx.get(f"{address}/health", timeout=HANG_S).status_code == 200
    assert caplog.text.count("connections are open: more are closed") == 1


def test_no_part_of_an_answer_waits_until_a_client_has_confirmed_another(
    pair, tmp_path, monkeypatch
):
    made, seen = http.PatientProtocol.connection_made, []

    def noted(protocol, transport):
        connection = transport.get_extra_info("socket")
        seen.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        made(protocol, transport)

    monkeypatch.setattr(http.PatientProtocol, "connection_made", noted)
    with embedded(Decoder(pair, Anchored(k=1.0)), tmp_path):
        pass
    assert seen and all(seen)
