"""The server whose engine is vLLM keeps the contract, and after a kill its journal is whole."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("vllm", reason="vLLM has another environment: make test-vllm")

import httpx
import openai
from server_contract import *  # noqa: F403
from server_contract import KINDS, MOST_K, MOST_TOKENS, PROMPTS, RULES, Served
from vllm_server import end, server
from waiting import HANG_S

import anchored
from anchored.decode.serving.journal_reader import journal_ledgers

TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"


@pytest.fixture(scope="module")
def running(folders, tmp_path_factory):
    root = tmp_path_factory.mktemp("server")
    for folder in folders:
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    words = ["--safe", str(folders[0]), "--risky", str(folders[1]), "--ledgers", str(root / "j")]
    words += ["--max-k", str(MOST_K), "--max-total", "900", "--max-horizon", str(MOST_TOKENS)]
    with server(words, root / "log") as (address, process):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="-")
        yield client, root / "j", process


@pytest.fixture(scope="module")
def served(running, pair):
    client, journal, _ = running
    return Served(client, pair, RULES["pathwise"], journal, "{} ")


def test_texts_end_after_ctrl_c_which_the_engine_s_process_gets_too(folders, tmp_path):
    words = ["--safe", str(folders[0]), "--risky", str(folders[1]), "--shutdown-s", str(HANG_S)]
    body = {"prompt": "the keeper", "max_tokens": 60, "stream": True, "ignore_eos": True, "seed": 1}
    with server(words, tmp_path / "log") as (address, process):
        url, events = f"{address}/v1/completions", []
        with httpx.stream("POST", url, json=body, timeout=HANG_S) as answer:
            for line in filter(None, answer.iter_lines()):
                events.append(line)
                if len(events) == 1:
                    os.killpg(process.pid, signal.SIGINT)
        assert process.wait(HANG_S) == 0
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2][6:])["choices"][0]["finish_reason"] == "length"


def test_after_a_kill_the_journal_holds_every_token_that_was_sent(running, pair):
    """The last one of this file: it ends the server."""
    client, journal, process = running
    sent: dict[str, list[int]] = {}

    def stream(number: int) -> None:
        nats = {**KINDS["pathwise"][number % 4], "seed": number}
        try:
            for chunk in client.completions.create(
                model="anchored",
                prompt=f"{PROMPTS[number % 4]} {number}",
                max_tokens=100,
                stream=True,
                extra_body={"anchored": nats, "return_token_ids": True},
            ):
                sent.setdefault(chunk.id, []).extend(chunk.choices[0].token_ids or [])
                if sum(map(len, sent.values())) > 200:
                    end(process)
        except (openai.APIError, httpx.HTTPError):
            return  # the server is gone

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(stream, range(8)))
    assert sum(map(len, sent.values())) > 200
    ledgers = dict(journal_ledgers(journal))
    for name, token_ids in sent.items():
        assert ledgers[f"{name}-0"].token_ids[: len(token_ids)] == token_ids
    assert all(ledger.is_within_bound for ledger in ledgers.values())
    reports = anchored.verify(list(ledgers.values()), pair)
    assert [report.failures for report in reports if not report.is_ok] == []
