"""vLLM's server with accounts of clients: charges, the server's end, and a kill."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore

import pytest

pytest.importorskip("vllm", reason="vLLM has another environment: make test-vllm")

import httpx
from server_accounts import ALICE, account, ask, policy_file
from vllm_server import end, server
from waiting import HANG_S, until

from anchored.decode.serving.accounts.recovery import recover
from anchored.decode.serving.accounts.store import QUANTUM, opened, quanta_above
from anchored.decode.serving.journal_reader import JournalReader, journal_names
from anchored.tools.commands.accounts import AccountsConfig, accounts

from .conftest import saved_pair

TOKENS = 16_000
"""The length of a long stream, and its nats: no machine draws so many tokens in minutes."""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """The folder of a pair that never ends a text, and of its server."""
    folder = tmp_path_factory.mktemp("accounts")
    saved_pair(folder, is_endless=True, max_position_embeddings=TOKENS + 64)
    return folder


def served(root: Path):
    file = policy_file(root, alice=1_000_000.0, bob=50.0)
    words = ["--safe", str(root / "safe"), "--risky", str(root / "risky")]
    words += ["--ledgers", str(root / "j"), "--accounts", str(file), "--shutdown-s", "1"]
    return server(words, root / "log")


def stream(address: str, number: int, begun: Semaphore) -> list[str]:
    """The events of a long stream, as many as come; begun: released at the first, or without one
    at the end."""
    body = {"prompt": f"the keeper {number}", "max_tokens": TOKENS, "stream": True, "seed": number}
    events, url = [], f"{address}/v1/completions"
    try:
        with httpx.stream("POST", url, json=body, headers=ALICE, timeout=HANG_S) as answer:
            for line in filter(None, answer.iter_lines()):
                events.append(line)
                if len(events) == 1:
                    begun.release()
    except httpx.HTTPError:  # the server is gone
        pass
    if not events:
        begun.release()
    return events


def check_settled(root: Path) -> None:
    """No bound is reserved, every charge is its record's and all sums are right."""
    config = AccountsConfig(accounts=root / "accounts.toml", journal=(root / "j",))
    with opened("accounts.db", root) as store:
        assert {state.reserved for state in store.states()} == {0.0}
    assert accounts(config) == 0


def test_texts_are_charged_what_the_journal_holds_until_the_server_ends(root):
    with served(root) as (address, process):
        # 1. A text is charged what it spent; the page of metrics has our series and vLLM's.
        spent = ask(address, "bob", anchored={"k": 1.0, "bank": 2.0}).json()["anchored"]["spent"]
        state = account(address, "bob")
        charged = quanta_above(max(0.0, spent)) * QUANTUM
        assert (state["spent"], state["reserved"]) == (charged, 0.0)
        page = httpx.get(f"{address}/metrics", headers=ALICE, timeout=HANG_S).text
        assert "anchored_debt_nats_count 1.0" in page and "anchored_solver_fallback 0.0" in page
        assert "\nvllm:" in page
        # 2. Streams that are open at SIGTERM end with an error once the time is over.
        begun = Semaphore(0)
        with ThreadPoolExecutor(4) as threads:
            streams = [threads.submit(stream, address, number, begun) for number in range(4)]
            assert all(begun.acquire(timeout=HANG_S) for _ in streams)
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG_S) == 0
            assert all("error" in json.loads(each.result()[-1][6:]) for each in streams)
    check_settled(root)


def test_what_a_killed_server_drew_is_charged_from_its_journal(root):
    reader = JournalReader(root / "j", skipped=journal_names(root / "j"))
    with served(root) as (address, process), ThreadPoolExecutor(6) as threads:
        streams = [threads.submit(stream, address, number, Semaphore(0)) for number in range(6)]
        # A client that leaves in the middle pays for what was drawn.
        body = {"prompt": "a", "max_tokens": TOKENS, "stream": True, "seed": 7}
        url = f"{address}/v1/completions"
        with httpx.stream("POST", url, json=body, headers=ALICE, timeout=HANG_S) as answer:
            next(answer.iter_lines())
        until(lambda: reader.refresh() and sum(len(r.drawn) > 2 for r in reader.records()) >= 4)
        end(process)
        assert any(each.result() for each in streams)
        with opened("accounts.db", root) as store:
            assert store.state("client/alice").reserved >= TOKENS
            recover(store)
            assert store.state("client/alice").reserved == 0.0
    check_settled(root)
