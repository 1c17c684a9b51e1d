"""The server as a program in mixed traffic and a kill: what was sent, journalled, verified."""

import itertools
import json
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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
KINDS = ("completion", "leaves", "chat", "bad")


class Traffic:
    """Streams of mixed requests, the same ones every time, and what came back."""

    def __init__(self) -> None:
        self.token_ids: dict[str, list[int]] = {}
        """Tokens that were sent of texts, by their names in the journal."""
        self.figures: dict[str, dict[str, Any]] = {}
        """Figures of texts that have ended."""

    def send(self, address: str, number: int) -> None:
        rng, kind = random.Random(number), KINDS[number % len(KINDS)]
        prompt = rng.choice(PROMPTS)
        messages = {"messages": [{"role": "user", "content": prompt}]}
        body = {
            **(messages if kind == "chat" else {"prompt": prompt}),
            **rng.choice([{}, {}, {"top_p": 0.9}, {"top_k": 40}, {"repetition_penalty": 1.2}]),
            **rng.choice([{}, {}, {}, {"stop": ["e"]}]),
            **({"logit_bias": {"5": 1.0}} if kind == "bad" else {}),
            "max_tokens": 40 if kind == "leaves" else rng.randint(1, 40),
            "temperature": rng.choice([0.7, 1.0, 1.3]),
            "anchored": rng.choice([{}, {"k": 0.0}, {"k": 3.0}, {"K": 12.0}, {"bank": 1.0}]),
        }
        body |= {"stream": True, "return_token_ids": True}
        url = f"{address}/v1/{'chat/' * (kind == 'chat')}completions"
        with httpx.stream("POST", url, json=body, headers=ALICE, timeout=HANG_S) as response:
            assert response.status_code == (400 if kind == "bad" else 200)
            for place, line in enumerate(filter(None, response.iter_lines())):
                if kind == "bad" or line == "data: [DONE]" or (kind == "leaves" and place == 3):
                    return
                self._note(kind, json.loads(line.removeprefix("data: ")))

    def _note(self, kind: str, chunk: dict[str, Any]) -> None:
        name = chunk["id"] if kind == "chat" else f"{chunk['id']}-0"
        for choice in chunk.get("choices", ()):
            self.token_ids.setdefault(name, []).extend(choice.get("token_ids", ()))
            if "anchored" in choice:
                self.figures[name] = choice["anchored"]


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
    traffic, over, journal = Traffic(), itertools.count(1), tmp_path / "journal"
    where = "accounts.db" if database == "sqlite" else request.getfixturevalue("postgresql")
    file = policy_file(tmp_path, alice=1e6)
    file.write_text(f'store = "{where}"\n{file.read_text()}')
    words = ["--safe", str(folders[0]), "--risky", str(folders[1]), "--max-horizon", "100"]
    words += ["--ledgers", str(journal), "--journal-mb", "1", "--accounts", str(file)]
    for numbers, is_killed in ((range(100), True), (range(100, 200), False)):
        with program(words, tmp_path / "log") as (address, process):

            def send(number: int, address=address, process=process, ends=is_killed) -> None:
                with suppress(httpx.HTTPError if ends else ()):
                    traffic.send(address, number)
                if next(over) == 80:
                    process.kill()

            with ThreadPoolExecutor(24) as threads:
                list(threads.map(send, numbers))
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG_S) == (-signal.SIGKILL if is_killed else 0)
    # 1. Nothing that was sent is missing.
    ledgers = dict(journal_ledgers(journal))
    for name, token_ids in traffic.token_ids.items():
        assert ledgers[name].token_ids[: len(token_ids)] == token_ids
    for name, figures in traffic.figures.items():
        assert figures["spent"] == ledgers[name].spent <= figures["bound"]
        assert figures["certified"] is ledgers[name].certified is True
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
