"""The server as a program in mixed traffic: what was sent, journalled, verified, drawn alone."""

import json
import random
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from embedded_server import posted, program, saved
from server_accounts import KEYS, nats, policy_file
from tiny_models import never_end, tiny_llama, train_tokenizer
from waiting import HANG_S, until

from anchored import Decoder, Generation, Ledger, ModelPair, Pathwise, verify
from anchored.decode.serving.accounts.store import QUANTUM, opened, quanta_above
from anchored.decode.serving.anchored_options import AnchoredOptions, Limits
from anchored.decode.serving.journal_reader import journal_ledgers
from anchored.tools.commands.accounts import AccountsConfig, accounts

PROMPTS = ["the keeper of the lamp", "import math", "Nine tides ago, the harbour bell", "salt"]
MOST_TOKENS = 40
KINDS = ("plain", "stream", "stream", "leaves", "chat", "bad")
BAD: Sequence[Any] = (
    {"prompt": "salt", "anchored": {"kk": 1.0}},
    {"prompt": "salt", "logit_bias": {"5": 1.0}},
    {"prompt": "salt", "max_tokens": 10**9},
    {"prompt": [1, 10**7]},
    b"[" * 50_000,
    b'{"prompt": NaN}',
)


@dataclass(kw_only=True)
class Sent:
    """One request, and what came back."""

    kind: str
    body: Any
    status: int = 0
    answer_id: str = ""
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
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
            said = choice.get("delta", choice.get("message", {}))
            self.text += choice.get("text", "") + (said.get("content") or "")
            self.figures = choice.get("anchored", self.figures)


def mixed(count: int, *, seed: int = 0) -> list[Sent]:
    """Requests of all kinds, the same ones every time."""
    rng, requests = random.Random(seed), []
    for number in range(count):
        kind, prompt = KINDS[number % len(KINDS)], rng.choice(PROMPTS)
        if kind == "bad":
            requests.append(Sent(kind=kind, body=BAD[number // len(KINDS) % len(BAD)]))
            continue
        messages = {"messages": [{"role": "user", "content": prompt}]}
        options = rng.choice([{}, {"k": 0.0}, {"k": 0.3}, {"k": 3.0}, {"K": 12.0}, {"bank": 1.0}])
        body = {
            **(messages if kind == "chat" else {"prompt": prompt}),
            **rng.choice([{}, {}, {"top_p": 0.9}, {"top_k": 40}, {"repetition_penalty": 1.2}]),
            **rng.choice([{}, {}, {}, {"stop": ["e"]}]),
            "max_tokens": MOST_TOKENS if kind == "leaves" else rng.randint(1, MOST_TOKENS),
            "stream": kind in ("stream", "leaves") or (kind == "chat" and rng.random() < 0.5),
            "temperature": rng.choice([0.7, 1.0, 1.3]),
            "return_token_ids": True,
            "anchored": {"seed": rng.getrandbits(40), **options},
        }
        requests.append(Sent(kind=kind, body=body))
    return requests


def send(
    address: str,
    requests: Sequence[Sent],
    after_each: Callable[[int], None] = lambda count: None,
    key: str = "-",
) -> None:
    """Send them, 24 at a time; what comes back is noted in each.

    after_each: is called with the number of those that are over. A server that goes away leaves
    status 0, or the tokens that came until then.
    """
    over = []

    def one(request: Sent) -> None:
        with suppress(httpx.HTTPError):
            _send(address, request, key)
        over.append(request)
        after_each(len(over))

    with ThreadPoolExecutor(24) as threads:
        list(threads.map(one, requests))


def _send(address: str, request: Sent, key: str) -> None:
    body, url = request.body, f"{address}/v1/{'chat/' * (request.kind == 'chat')}completions"
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
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
def folders(tmp_path_factory) -> tuple[Path, Path]:
    """The folders of a pair of chat models."""
    models = (tiny_llama(seed, layers=1 + seed, max_position_embeddings=1024) for seed in (1, 2))
    tokenizer = train_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    return saved(ModelPair(*models, tokenizer), tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def pair(folders) -> ModelPair:
    return ModelPair.from_pretrained(*folders)


def words(folders: tuple[Path, Path], *more: str) -> list[str]:
    return ["--safe", str(folders[0]), "--risky", str(folders[1]), *more]


def alone(pair: ModelPair, body: dict[str, Any]) -> Generation:
    """The text as `Decoder.generate` makes it, by the server's rule."""
    options = AnchoredOptions(**body["anchored"])
    names = ("temperature", "top_p", "top_k", "repetition_penalty", "stop")
    settings = {"repetition_penalty": 1.0, **{n: body[n] for n in names if n in body}}
    settings |= {"max_new_tokens": body["max_tokens"], "seed": options.seed}
    texts = {"messages": body["messages"]} if "messages" in body else {"prompts": body["prompt"]}
    (result,) = Decoder(pair, Limits(rule=Pathwise()).rule_of(options)).generate(
        **texts, **settings
    )
    return result


def check_journal(requests: list[Sent], journal: Path, pair: ModelPair) -> dict[str, Ledger]:
    """The ledgers: nothing that was sent is missing, and every one verifies."""
    ledgers = dict(journal_ledgers(journal))
    for sent in requests:
        if sent.token_ids:
            assert ledgers[sent.name].token_ids[: len(sent.token_ids)] == sent.token_ids
    reports = verify(list(ledgers.values()), pair)
    assert [report.failures for report in reports if not report.is_ok] == []
    assert all(ledger.is_within_bound for ledger in ledgers.values())
    return ledgers


@pytest.mark.slow
def test_mixed_requests_are_journalled_verified_and_those_of_the_decoder(folders, pair, tmp_path):
    requests, journal = mixed(120), tmp_path / "journal"
    more = ("--ledgers", str(journal), "--max-horizon", "100", "--batch-size", "8")
    with program(words(folders, *more), tmp_path / "log") as (address, process):
        send(address, requests)
        assert httpx.get(f"{address}/ready", timeout=HANG_S).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0
    good = [sent for sent in requests if sent.kind != "bad"]
    assert {sent.status for sent in requests if sent.kind == "bad"} == {400}
    assert {sent.status for sent in good} == {200}
    ledgers = check_journal(requests, journal, pair)
    assert len(ledgers) == len(good)
    for sent in good:
        if sent.kind == "leaves":
            continue
        result, ledger = alone(pair, sent.body), ledgers[sent.figures["id"]]
        assert (sent.token_ids, sent.text) == (result.token_ids, result.text), sent.body
        assert sent.figures["spent"] == ledger.spent <= sent.figures["bound"]
        assert sent.figures["certified"] is ledger.certified is True
        assert ledger.finish_reason == result.finish_reason


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_kill_in_the_middle_loses_nothing_that_was_sent_and_all_accounts_add_up(
    folders, pair, tmp_path, database, request
):
    """The server that is killed has an account's texts open; the next one settles them."""
    requests = mixed(200, seed=1)
    where = "accounts.db" if database == "sqlite" else request.getfixturevalue("postgresql")
    file = policy_file(tmp_path, alice=1e6)
    file.write_text(f'store = "{where}"\n{file.read_text()}')
    more = ["--ledgers", str(tmp_path / "journal"), "--max-horizon", "100", "--journal-mb", "1"]
    more += ["--accounts", str(file)]
    for part, ends in ((requests[:100], 80), (requests[100:], None)):
        with program(words(folders, *more), tmp_path / "log") as (address, process):

            def after(over: int, ends=ends, process=process) -> None:
                if over == ends:
                    process.kill()

            send(address, part, after, KEYS["alice"])
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG_S) == (0 if ends is None else -signal.SIGKILL)
    assert any(sent.status == 0 for sent in requests)
    ledgers = check_journal(requests, tmp_path / "journal", pair)
    assert any(step.spend < 0.0 for ledger in ledgers.values() for step in ledger.steps)
    with opened(where, tmp_path) as store:
        spent, reserved, _ = nats(store, "client/alice")
        charges = {charge.request_id: charge.spent for charge in store.charges()}
    quanta = {name: quanta_above(max(0.0, ledger.spent)) for name, ledger in ledgers.items()}
    assert {name: charges[name] for name in quanta} == quanta
    assert {name for name, quanta_spent in charges.items() if quanta_spent} <= set(ledgers)
    assert (spent, reserved) == (sum(quanta.values()) * QUANTUM, 0.0)
    config = AccountsConfig(accounts=file, journal=(tmp_path / "journal",))
    assert accounts(config) == 0


@pytest.mark.slow
def test_after_sigterm_texts_go_on_and_others_are_503_until_a_second_one_ends_all(tmp_path):
    models = [tiny_llama(seed, max_position_embeddings=32_000) for seed in (1, 2)]
    for model in models:
        never_end(model)
    folders = saved(ModelPair(*models, train_tokenizer()), tmp_path)
    body = {"prompt": "the keeper", "max_tokens": 31_000, "seed": 1}
    more, lines, begun = ("--shutdown-s", str(HANG_S), "--batch-size", "1"), [], threading.Event()
    with program(words(folders, *more), tmp_path / "log") as (address, process):

        def read() -> None:
            url, stream = f"{address}/v1/completions", {**body, "stream": True}
            with httpx.stream("POST", url, json=stream, timeout=HANG_S) as response:
                for line in filter(None, response.iter_lines()):
                    lines.append(line)
                    begun.set()

        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(read)
            assert begun.wait(HANG_S)
            process.send_signal(signal.SIGTERM)
            until(lambda: httpx.get(f"{address}/health", timeout=HANG_S).status_code == 503)
            assert posted(address, **body).status_code == 503
            count = len(lines)
            until(lambda: len(lines) > count)
            process.send_signal(signal.SIGTERM)
            reading.result()
        assert process.wait(HANG_S) == 0
    assert json.loads(lines[-1][6:])["error"]["code"] == 503
    assert "Traceback" not in (tmp_path / "log").read_text()
