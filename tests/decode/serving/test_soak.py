"""The embedded server in mixed traffic: what was sent, journalled, verified, and drawn alone."""

import json
import signal
import threading
from pathlib import Path

import httpx
import psutil
import pytest
from embedded_server import program
from mixed_traffic import Asked, mixed, sent
from server_accounts import KEYS, nats, policy_file
from tiny_models import never_end, tiny_llama, train_tokenizer
from waiting import HANG_S, until

import anchored
from anchored import Anchored, Decoder, Ledger, ModelPair, Pathwise, verify
from anchored.decode.rules.rule import Rule
from anchored.decode.serving.accounts.store import QUANTUM, opened, quanta_above
from anchored.decode.serving.anchored_options import Asked as Wishes
from anchored.decode.serving.anchored_options import Limits
from anchored.decode.serving.journal_reader import journal_ledgers
from anchored.tools.commands.accounts import AccountsConfig, accounts

PROMPTS = ["the keeper of the lamp", "import math", "Nine tides ago, the harbour bell", "salt"]
MOST_TOKENS = 40


def saved_pair(
    root: Path, *, max_position_embeddings: int = 1024, is_endless: bool = False
) -> tuple[Path, Path]:
    """The folders of a pair of chat models; is_endless: they never end a text."""
    tokenizer = train_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    sizes = {"max_position_embeddings": max_position_embeddings}
    for seed, name in enumerate(("safe", "risky"), start=1):
        model = tiny_llama(seed, layers=1 + seed, **sizes)
        if is_endless:
            never_end(model)
        model.float().save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root / "safe", root / "risky"


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    return saved_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def pair(folders) -> ModelPair:
    return ModelPair.from_pretrained(*folders)


def words(folders: tuple[Path, Path], *more: str) -> list[str]:
    return ["--safe", str(folders[0]), "--risky", str(folders[1]), *more]


def alone(pair: ModelPair, rule: Rule, asked: Asked) -> anchored.Generation:
    """The text as `Decoder.generate` makes it, by the server's rule."""
    body = asked.body
    wishes = Wishes(**body["anchored"])
    decoder = Decoder(pair, Limits(rule=rule).rule_of(wishes))
    named = ("temperature", "top_p", "top_k", "repetition_penalty", "stop")
    settings = {"repetition_penalty": 1.0, **{n: body[n] for n in named if n in body}}
    settings |= {"max_new_tokens": body["max_tokens"], "seed": wishes.seed}
    if asked.kind == "chat":
        (result,) = decoder.generate(messages=body["messages"], **settings)
    else:
        (result,) = decoder.generate([body["prompt"]], **settings)
    return result


def assert_accounted(requests: list[Asked], journal: Path, pair: ModelPair) -> dict[str, Ledger]:
    """Nothing that was sent is missing, and every ledger verifies."""
    ledgers = dict(journal_ledgers(journal))
    for asked in requests:
        if asked.answer_id and asked.token_ids:
            is_chat = asked.kind == "chat"
            name = asked.answer_id if is_chat else f"{asked.answer_id}-0"
            assert ledgers[name].token_ids[: len(asked.token_ids)] == asked.token_ids
    reports = verify(list(ledgers.values()), pair)
    assert [report.failures for report in reports if not report.is_ok] == []
    assert all(ledger.is_within_bound for ledger in ledgers.values())
    return ledgers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "options", "divergences"),
    [(Pathwise(), (), ()), (Anchored(k=1.5), ("--rule", "anchored"), ("kl", "max"))],
    ids=["pathwise", "anchored"],
)
def test_200_mixed_requests_are_journalled_verified_and_those_of_the_decoder(
    folders, pair, tmp_path, rule, options, divergences
):
    requests = mixed(200, PROMPTS, max_tokens=MOST_TOKENS, divergences=divergences)
    journal = tmp_path / "journal"
    more = ("--ledgers", str(journal), "--max-horizon", "100", "--batch-size", "8", *options)
    with program(words(folders, *more), tmp_path / "log") as (address, process):
        sent(address, requests)
        assert httpx.get(f"{address}/ready", timeout=HANG_S).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_S) == 0
    by_kind = {kind: [r for r in requests if r.kind == kind] for kind in {r.kind for r in requests}}
    assert {asked.status for asked in by_kind.pop("bad")} == {400}
    assert {asked.status for each in by_kind.values() for asked in each} == {200}
    ledgers = assert_accounted(requests, journal, pair)
    assert len(ledgers) == sum(map(len, by_kind.values()))
    for asked in (asked for kind in ("plain", "stream", "chat") for asked in by_kind[kind]):
        result = alone(pair, rule, asked)
        assert (asked.token_ids, asked.text) == (result.token_ids, result.text), asked.body
        ledger = ledgers[asked.figures["id"]]
        assert asked.figures["spent"] == ledger.spent <= asked.figures["bound"]
        assert asked.figures["certified"] is ledger.certified is True
        assert ledger.finish_reason == result.finish_reason
    ended = [ledgers[f"{r.answer_id}-0"].finish_reason for r in by_kind["leaves"]]
    assert ended.count("aborted") > len(ended) // 2


def killed_in_the_middle(count: int, folders: tuple[Path, Path], folder: Path) -> list[Asked]:
    """So many requests of a client with an account, in the journal's folder `folder / "journal"`:
    the server is killed in the middle, and the next one goes on in small files."""
    requests = mixed(count, PROMPTS, max_tokens=MOST_TOKENS, seed=1)
    more = ["--ledgers", str(folder / "journal"), "--max-horizon", "100", "--journal-mb", "1"]
    more += ["--accounts", str(policy_file(folder, alice=1e6))]
    first, second = requests[: count // 2], requests[count // 2 :]
    for part, ends in ((first, len(first) * 4 // 5), (second, None)):
        with program(words(folders, *more), folder / "log") as (address, process):

            def after(over: int, ends=ends, process=process) -> None:
                if over == ends:
                    process.kill()

            sent(address, part, after, KEYS["alice"])
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG_S) == (0 if ends is None else -signal.SIGKILL)
    return requests


@pytest.mark.slow
def test_a_kill_in_the_middle_loses_nothing_that_was_sent_and_all_accounts_add_up(
    folders, pair, tmp_path, count=300
):
    requests = killed_in_the_middle(count, folders, tmp_path)
    assert any(asked.status == 0 for asked in requests)
    ledgers = assert_accounted(requests, tmp_path / "journal", pair)
    assert any(ledger.finish_reason == "aborted" for ledger in ledgers.values())
    with opened("accounts.db", tmp_path) as store:
        spent, reserved, _ = nats(store, "client/alice")
        charges = {charge.request_id: charge.spent for charge in store.charges()}
    quanta = {name: quanta_above(max(0.0, ledger.spent)) for name, ledger in ledgers.items()}
    assert {name: charges[name] for name in quanta} == quanta
    assert (spent, reserved) == (sum(quanta.values()) * QUANTUM, 0.0)
    config = AccountsConfig(accounts=tmp_path / "accounts.toml", journal=(tmp_path / "journal",))
    assert accounts(config) == 0


@pytest.mark.slow
def test_memory_does_not_grow_with_requests(folders, tmp_path):
    with program(words(folders, "--max-horizon", "100"), tmp_path / "log") as (address, process):
        sizes = []
        for part in range(5):
            sent(address, mixed(120, PROMPTS, max_tokens=MOST_TOKENS, seed=part))
            sizes.append(psutil.Process(process.pid).memory_info().rss)
    # Threads and pools have grown by then; a row of cache that stays takes 2 MB a text.
    assert sizes[-1] - sizes[1] < 32 << 20


@pytest.mark.slow
def test_after_sigterm_texts_go_on_and_others_are_503_until_a_second_one_ends_all(tmp_path):
    endless = saved_pair(tmp_path, max_position_embeddings=4096, is_endless=True)
    body, lines, begun = {"prompt": "the keeper", "max_tokens": 4000}, [], threading.Event()
    with program(words(endless, "--shutdown-s", "600"), tmp_path / "log") as (address, process):
        url = f"{address}/v1/completions"

        def read() -> None:
            with httpx.stream(
                "POST", url, json={**body, "stream": True}, timeout=HANG_S
            ) as response:
                for line in filter(None, response.iter_lines()):
                    lines.append(line)
                    begun.set()

        thread = threading.Thread(target=read)
        thread.start()
        assert begun.wait(HANG_S)
        process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{address}/health", timeout=HANG_S).status_code == 503)
        assert httpx.post(url, json=body, timeout=HANG_S).status_code == 503
        count = len(lines)
        until(lambda: len(lines) > count)
        process.send_signal(signal.SIGTERM)
        thread.join(HANG_S)
        assert process.wait(HANG_S) == 0
    assert json.loads(lines[-1][6:])["error"]["code"] == 503
    assert "Traceback" not in (tmp_path / "log").read_text()
