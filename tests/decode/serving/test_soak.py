"""The server as a program in mixed traffic and a kill: what was sent, journalled, verified."""

import json
import random
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from embedded_server import program, saved
from server_accounts import ALICE, nats, policy_file
from tiny_models import tiny_llama, train_tokenizer
from waiting import HANG_S

from anchored import ModelPair, verify
from anchored.decode.serving.accounts.store import QUANTUM, opened, quanta_above
from anchored.decode.serving.journal_reader import journal_ledgers
from anchored.tools.commands.accounts import AccountsConfig, accounts

PROMPTS = ["the keeper of the lamp", "import math", "Nine tides ago, the harbour bell", "salt"]
MOST_TOKENS = 40
KINDS = ("plain", "stream", "stream", "leaves", "chat", "bad")
BAD: Sequence[Any] = ({"prompt": "salt", "logit_bias": {"5": 1.0}}, b"[" * 50_000)


@dataclass(kw_only=True)
class Sent:
    """One request, and what came back."""

    kind: str
    body: Any
    status: int = 0
    answer_id: str = ""
    token_ids: list[int] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """The figures of a text that has ended."""

    @property
    def name(self) -> str:
        """Of its text in the journal."""
        return self.answer_id if self.kind == "chat" else f"{self.answer_id}-0"

    def note(self, part: dict[str, Any]) -> None:
        """A part of the answer, or all of it."""
        self.answer_id = part.get("id", self.answer_id)
        for choice in part.get("choices", ()):
            self.token_ids += choice.get("token_ids") or []
            self.figures = choice.get("anchored", self.figures)


def mixed(count: int, *, seed: int) -> list[Sent]:
    """Requests of all kinds, the same ones every time."""
    rng, requests = random.Random(seed), []
    for number in range(count):
        kind, prompt = KINDS[number % len(KINDS)], rng.choice(PROMPTS)
        if kind == "bad":
            requests.append(Sent(kind=kind, body=BAD[number // len(KINDS) % len(BAD)]))
            continue
        messages = {"messages": [{"role": "user", "content": prompt}]}
        body = {
            **(messages if kind == "chat" else {"prompt": prompt}),
            **rng.choice([{}, {}, {"top_p": 0.9}, {"top_k": 40}, {"repetition_penalty": 1.2}]),
            **rng.choice([{}, {}, {}, {"stop": ["e"]}]),
            "max_tokens": MOST_TOKENS if kind == "leaves" else rng.randint(1, MOST_TOKENS),
            "stream": kind in ("stream", "leaves") or (kind == "chat" and rng.random() < 0.5),
            "temperature": rng.choice([0.7, 1.0, 1.3]),
            "return_token_ids": True,
            "anchored": rng.choice([{}, {"k": 0.0}, {"k": 3.0}, {"K": 12.0}, {"bank": 1.0}]),
        }
        requests.append(Sent(kind=kind, body=body))
    return requests


def send(address: str, requests: Sequence[Sent], after_each: Callable[[int], None]) -> None:
    """Send them, 24 at a time; what comes back is noted in each.

    after_each: is called with the number of those that are over. A server that goes away leaves
    status 0, or the tokens that came until then.
    """
    over = []

    def one(request: Sent) -> None:
        with suppress(httpx.HTTPError):
            _send(address, request)
        over.append(request)
        after_each(len(over))

    with ThreadPoolExecutor(24) as threads:
        list(threads.map(one, requests))


def _send(address: str, request: Sent) -> None:
    body, url = request.body, f"{address}/v1/{'chat/' * (request.kind == 'chat')}completions"
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", **ALICE}
    with httpx.stream("POST", url, content=content, headers=headers, timeout=HANG_S) as response:
        request.status = response.status_code
        if request.kind == "bad" or response.status_code != 200 or not body["stream"]:
            request.note(json.loads(response.read()))
            return
        for number, line in enumerate(line for line in response.iter_lines() if line):
            if line == "data: [DONE]" or (request.kind == "leaves" and number == 3):
                return
            request.note(json.loads(line.removeprefix("data: ")))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders of a pair of chat models."""
    models = (tiny_llama(seed, layers=1 + seed, max_position_embeddings=1024) for seed in (1, 2))
    tokenizer = train_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    return saved(ModelPair(*models, tokenizer), tmp_path_factory.mktemp("pair"))


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_kill_in_the_middle_loses_nothing_that_was_sent_and_all_accounts_add_up(
    folders, tmp_path, database, request
):
    """The server that is killed has an account's texts open; the next one settles them."""
    requests, journal = mixed(200, seed=1), tmp_path / "journal"
    where = "accounts.db" if database == "sqlite" else request.getfixturevalue("postgresql")
    file = policy_file(tmp_path, alice=1e6)
    file.write_text(f'store = "{where}"\n{file.read_text()}')
    words = ["--safe", str(folders[0]), "--risky", str(folders[1]), "--max-horizon", "100"]
    words += ["--ledgers", str(journal), "--journal-mb", "1", "--accounts", str(file)]
    for part, ends in ((requests[:100], 80), (requests[100:], None)):
        with program(words, tmp_path / "log") as (address, process):

            def after(over: int, ends=ends, process=process) -> None:
                if over == ends:
                    process.kill()

            send(address, part, after)
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG_S) == (0 if ends is None else -signal.SIGKILL)
    # 1. Answers are as they should be, and nothing that was sent is missing.
    ledgers = dict(journal_ledgers(journal))
    assert any(sent.status == 0 for sent in requests)
    for sent in requests:
        assert sent.status in (0, 400 if sent.kind == "bad" else 200)
        if sent.token_ids:
            assert ledgers[sent.name].token_ids[: len(sent.token_ids)] == sent.token_ids
        if sent.figures:
            assert sent.figures["spent"] == ledgers[sent.name].spent <= sent.figures["bound"]
            assert sent.figures["certified"] is ledgers[sent.name].certified is True
    # 2. Every text is the one that its seed draws, within its bound.
    reports = verify(list(ledgers.values()), ModelPair.from_pretrained(*folders))
    assert [report.failures for report in reports if not report.is_ok] == []
    assert all(ledger.is_within_bound for ledger in ledgers.values())
    assert any(step.spend < 0.0 for ledger in ledgers.values() for step in ledger.steps)
    # 3. The account is charged what they spent.
    with opened(where, tmp_path) as store:
        spent, reserved, _ = nats(store, "client/alice")
        charges = {charge.request_id: charge.spent for charge in store.charges()}
    quanta = {name: quanta_above(max(0.0, ledger.spent)) for name, ledger in ledgers.items()}
    assert {name: charges[name] for name in quanta} == quanta
    assert {name for name, quanta_spent in charges.items() if quanta_spent} <= set(ledgers)
    assert (spent, reserved) == (sum(quanta.values()) * QUANTUM, 0.0)
    assert accounts(AccountsConfig(accounts=file, journal=(journal,))) == 0
