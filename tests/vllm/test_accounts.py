"""vLLM's server with accounts of clients: charges, the server's end, and a kill."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore

import pytest

pytest.importorskip("vllm", reason="vLLM has an environment of its own: make test-vllm")

import httpx
from prometheus_client.parser import text_string_to_metric_families
from server_accounts import KEYS, account, ask, policy_file
from tiny_models import never_end, tiny_llama, train_tokenizer
from vllm_server import end, server
from waiting import HANG_S, until

from anchored.decode.serving.accounts.recovery import recover
from anchored.decode.serving.accounts.store import QUANTUM, opened, quanta_above
from anchored.decode.serving.journal_reader import JournalReader
from anchored.tools.commands.accounts import AccountsConfig, accounts

from .conftest import SIZES

ALICE = {"authorization": f"Bearer {KEYS['alice']}"}


TOKENS = 16_000
"""The length of a long stream, and its nats: no machine draws so many tokens in minutes."""


@pytest.fixture(scope="module")
def long_folders(tmp_path_factory) -> tuple[Path, Path]:
    """A pair that never draws its end of text: what it writes ends at `max_tokens` alone."""
    root, tokenizer = tmp_path_factory.mktemp("long"), train_tokenizer()
    for seed, name in enumerate(("safe", "risky"), start=1):
        model = tiny_llama(seed, **{**SIZES, "max_position_embeddings": TOKENS + 64})
        never_end(model)
        model.float().save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root / "safe", root / "risky"


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    os.sync()  # what was installed before, for which an account that is written would wait
    return tmp_path_factory.mktemp("accounts")


def served(folders, root: Path):
    file = policy_file(root, alice=1_000_000.0, bob=50.0)
    words = ["--safe", str(folders[0]), "--risky", str(folders[1]), "--ledgers", str(root / "j")]
    words += ["--accounts", str(file), "--root-path", "/api", "--shutdown-s", "1"]
    return server(words, root / "log")


def stream(address: str, number: int, begun: Semaphore) -> list[str]:
    """The events of a long stream, as many as come; begun: released at the first, or without one
    at the end."""
    body = {"prompt": f"the keeper {number}", "max_tokens": TOKENS, "stream": True}
    events = []
    url = f"{address}/v1/completions"
    try:
        with httpx.stream("POST", url, json=body, headers=ALICE, timeout=HANG_S) as answer:
            for line in filter(None, answer.iter_lines()):
                events.append(line)
                if len(events) == 1:
                    begun.release()
    except httpx.HTTPError as error:
        print(f"{number}: {error!r} after {len(events)} events")  # the server is gone
    if not events:
        begun.release()
    return events


def check_settled(root: Path) -> None:
    """No bound is reserved, every charge has its record and all sums are right."""
    config = AccountsConfig(accounts=root / "accounts.toml", journal=(root / "j",))
    with opened("accounts.db", root) as store:
        reserved = {state.account: state.reserved for state in store.states()}
    assert set(reserved.values()) == {0.0}, reserved
    assert accounts(config) == 0


def test_texts_are_charged_what_the_journal_holds_until_the_server_ends(long_folders, root):
    with served(long_folders, root) as (address, process):
        # 1. A key, and the proxy's prefix or none.
        assert httpx.post(f"{address}/v1/completions", content=b"{" * 100).status_code == 401
        assert ask(address, "nobody").status_code == 401
        assert ask(f"{address}/api", "alice", max_tokens=2).status_code == 200
        # 2. Two texts with one seed share no noise; each is charged what it spent.
        asked = {"k": 1.0, "bank": 2.0}
        answers = [ask(address, "bob", seed=3, anchored=asked).json() for _ in range(2)]
        assert answers[0]["choices"][0]["text"] != answers[1]["choices"][0]["text"]
        spends = [one["anchored"]["spent"] for one in answers]
        spent = sum(quanta_above(max(0.0, each)) for each in spends) * QUANTUM
        # What was told is rounded to floats of JSON, and charged from the same figures.
        state = account(address, "bob")
        assert (state["spent"], state["reserved"]) == (spent, 0.0)
        assert (state["divergence"], answers[0]["anchored"]["charge"]) == ("max", "drawn")
        # 3. All that is left, and then no more; nothing that certifies nothing.
        last = ask(address, "bob", max_tokens=100, anchored={"K": "available"}).json()
        assert 0.0 <= state["available"] - last["anchored"]["K"] < 1e-6
        left = account(address, "bob")["available"]
        charged = spent + max(0.0, last["anchored"]["spent"])
        assert left == pytest.approx(50.0 - charged, abs=1e-6)
        refused = ask(address, "bob", anchored={"K": left + 0.5})
        assert refused.status_code == 429 and refused.json()["error"]["available"] == left
        assert ask(address, "bob", temperature=0).status_code == 400
        # 4. The id of a gateway is in the journal; the page of metrics has our series and vLLM's.
        body, headers = {"prompt": "a", "max_tokens": 1}, {**ALICE, "x-request-id": "trace-1"}
        response = httpx.post(
            f"{address}/v1/completions", json=body, headers=headers, timeout=HANG_S
        )
        assert response.headers["x-request-id"] == "trace-1"
        reader = JournalReader(root / "j")
        reader.refresh()
        assert [one.client_id for one in reader.records()][-1] == "trace-1"
        page = httpx.get(f"{address}/metrics", headers=ALICE, timeout=HANG_S).text
        series = {
            sample.name: sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }
        assert series["anchored_debt_nats_count"] == 5
        assert series["anchored_spent_nats_total"] > 0.0
        assert series["anchored_solver_fallback"] == 0.0
        assert any(name.startswith("vllm:") for name in series)
        # 5. Streams that are open at SIGTERM go on for a second, then end with an error; others
        #    come as the server ends.
        begun = Semaphore(0)
        with ThreadPoolExecutor(4) as threads, ThreadPoolExecutor(30) as late:
            streams = [threads.submit(stream, address, number, begun) for number in range(4)]
            assert all(begun.acquire(timeout=HANG_S) for _ in streams)
            process.send_signal(signal.SIGTERM)
            for number in range(4, 34):
                late.submit(stream, address, number, begun)
                time.sleep(0.05)
            status = process.wait(HANG_S)
            events = [each.result() for each in streams]
        assert status == 0
        assert all("error" in json.loads(each[-1][6:]) for each in events)
    check_settled(root)


def test_what_a_killed_server_drew_is_charged_from_its_journal(long_folders, root):
    reader = JournalReader(root / "j", skips_written=True)
    with served(long_folders, root) as (address, process), ThreadPoolExecutor(6) as threads:
        streams = [threads.submit(stream, address, number, Semaphore(0)) for number in range(6)]
        # A client that leaves in the middle pays for what was drawn.
        url, body = (
            f"{address}/v1/completions",
            {"prompt": "a", "max_tokens": TOKENS, "stream": True},
        )
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
