"""The server whose engine is vLLM: its contract, accounts of clients, its end, and a kill."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

pytest.importorskip("vllm", reason="vLLM has another environment: make test-vllm")

import embedded_server
import httpx
import openai
from server_accounts import ALICE, account, ask, policy_file
from server_contract import *  # noqa: F403
from server_contract import MOST_K, MOST_TOKENS, RULES, Served
from vllm_on_cpu import server
from waiting import HANG_S, until

import anchored
from anchored.decode.serving.accounts.journals import recover
from anchored.decode.serving.accounts.store import QUANTUM, opened, quanta_above
from anchored.decode.serving.journal_reader import journal_ledgers
from anchored.tools.commands.accounts import AccountsConfig, accounts

from .conftest import saved_pair

TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"
TOKENS = 16_000
"""The length of a long stream, and its nats: no machine draws so many tokens in minutes."""


@pytest.fixture(scope="module")
def served(folders, pair, tmp_path_factory):
    root = tmp_path_factory.mktemp("server")
    for folder in folders:
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    words = ["--safe", str(folders[0]), "--risky", str(folders[1]), "--ledgers", str(root / "j")]
    words += ["--max-k", str(MOST_K), "--max-total", "900", "--max-horizon", str(MOST_TOKENS)]
    with server(words, root / "log") as (address, _):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="-")
        yield Served(client, pair, RULES["pathwise"], root / "j", "{} ")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The folder of a pair that never ends a text, and of its server with accounts."""
    folder = tmp_path_factory.mktemp("accounts")
    saved_pair(folder, is_endless=True, max_position_embeddings=TOKENS + 64)
    return folder


def with_accounts(root):
    file = policy_file(root, alice=1_000_000.0, bob=50.0)
    words = ["--safe", str(root / "safe"), "--risky", str(root / "risky")]
    words += ["--ledgers", str(root / "j"), "--accounts", str(file), "--shutdown-s", str(HANG_S)]
    return server(words, root / "log")


def streamed(address: str, number: int, max_tokens: int):
    """The chunks of a stream, as they come, and "" for its end."""
    body = {"prompt": f"the keeper {number}", "max_tokens": max_tokens}
    with embedded_server.streamed(address, ALICE, **body) as answer:
        for line in filter(None, answer.iter_lines()):
            yield "" if line == "data: [DONE]" else json.loads(line[6:])


def check_settled(root) -> None:
    """No bound is reserved, every charge is its record's and all sums are right."""
    config = AccountsConfig(accounts=root / "accounts.toml", journal=(root / "j",))
    with opened("accounts.db", root) as store:
        assert {state.reserved for state in store.states()} == {0.0}
    assert accounts(config) == 0


def test_texts_are_charged_and_go_on_after_ctrl_c_which_the_engines_process_gets_too(root):
    with with_accounts(root) as (address, process):
        # 1. A text is charged what it spent; the page of metrics has our series and vLLM's.
        spent = ask(address, "bob", anchored={"k": 1.0, "bank": 2.0}).json()["anchored"]["spent"]
        state = account(address, "bob")
        charged = quanta_above(max(0.0, spent)) * QUANTUM
        assert (state["spent"], state["reserved"]) == (charged, 0.0)
        page = httpx.get(f"{address}/metrics", headers=ALICE, timeout=HANG_S).text
        assert "anchored_debt_nats_count 1.0" in page and "\nvllm:" in page
        # 2. A text that is open at Ctrl-C goes on to its end.
        chunks = streamed(address, 0, 60)
        next(chunks)
        os.killpg(process.pid, signal.SIGINT)
        *_, last, done = chunks
        assert process.wait(HANG_S) == 0
    assert done == "" and last["choices"][0]["finish_reason"] == "length"
    check_settled(root)


def test_what_a_killed_server_drew_is_charged_by_its_journal_which_has_all_that_was_sent(root):
    sent: dict[str, list[int]] = {}

    def stream(number: int) -> None:
        with suppress(httpx.HTTPError):  # the server is gone
            for chunk in streamed(address, number, TOKENS):
                name = f"{chunk['id']}-0"
                sent.setdefault(name, []).extend(chunk["choices"][0]["token_ids"])
                if number == 0:
                    return  # a client that leaves in the middle pays for what was drawn

    with with_accounts(root) as (address, process), ThreadPoolExecutor(6) as threads:
        for number in range(6):
            threads.submit(stream, number)
        until(lambda: sum(map(len, list(sent.values()))) > 100)
        os.killpg(process.pid, signal.SIGKILL)  # the server and its engine
        process.wait(HANG_S)
    with opened("accounts.db", root) as store:
        assert store.state("client/alice").reserved >= TOKENS
        recover(store)
    check_settled(root)
    ledgers = dict(journal_ledgers(root / "j"))
    for name, token_ids in sent.items():
        assert ledgers[name].token_ids[: len(token_ids)] == token_ids
    assert all(ledger.is_within_bound for ledger in ledgers.values())
    pair = anchored.ModelPair.from_pretrained(root / "safe", root / "risky", dtype="float32")
    reports = anchored.verify(list(ledgers.values()), pair)
    assert [report.failures for report in reports if not report.is_ok] == []
