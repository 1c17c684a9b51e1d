"""Clients with accounts, what they ask, and what their accounts hold."""

import hashlib
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier

import httpx
from embedded_server import embedded
from waiting import HANG_S

from anchored import Decoder, Pathwise
from anchored.decode.ledger import LedgerHeader, LedgerStep
from anchored.decode.rules.rule import Rule
from anchored.decode.serving.accounts.keeper import kept
from anchored.decode.serving.accounts.policy import Account, Client, Policy
from anchored.decode.serving.accounts.store import Exhausted, Store

KEYS = {"alice": "a-key", "bob": "b-key"}
ALICE = {"authorization": f"Bearer {KEYS['alice']}"}

HEADER = LedgerHeader(
    rule="pathwise",
    rule_settings={},
    sampling={},
    seed=0,
    prompt_token_ids=[1],
    stop_token_ids=[],
    fingerprints={},
    dtype="float32",
    k=1.0,
    K=8.0,
    debt=0.0,
    horizon=64,  # no run of the rules draws a text as often
    bound=8.0,
    charge="drawn",
)


def drawn(place: int, spend: float) -> LedgerStep:
    """A token at such a place of a text, which spent so many nats."""
    return LedgerStep(
        step=place,
        token_id=5,
        accepted=False,
        budget=8.0,
        spend=spend,
        weight=1.0,
        log_prob=-1.0,
        safe_log_prob=-1.0,
    )


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def client(name: str, **more) -> Client:
    keys = (digest(KEYS[name]),)
    return Client(**{"name": name, "nats": 1000.0, "key_sha256": keys, **more})


def policy_file(folder: Path, text: str = "", **nats: float) -> Path:
    tables = "".join(
        f'[[clients]]\nname = "{name}"\nnats = {amount}\nkey_sha256 = ["{digest(KEYS[name])}"]\n'
        for name, amount in nats.items()
    )
    file = folder / "accounts.toml"
    file.write_text(tables + text)
    return file


def nats(store: Store, account: str = "client/a") -> tuple[float, float, float]:
    state = store.state(account)
    return state.spent, state.reserved, state.available


def spend_all(make_store, limits: Mapping[str, Account], num_clients: int) -> list[float]:
    """Clients that apply the limits at once, reserve 1 nat each, spend all, half or less than
    nothing of it, and go on until there is no room while nothing is reserved; returns what each
    text is to be charged, nats."""
    begin = Barrier(num_clients)

    def spend(place: int) -> list[float]:
        begin.wait()
        store, charged = make_store(), []
        store.apply(limits)
        accounts = sorted(limits, reverse=place % 2 == 1)
        while True:
            text = f"{place}-{len(charged)}"
            try:
                store.reserve({text: 1.0}, accounts, f"server-{place}")
            except Exhausted as full:
                if full.state.reserved == 0.0:
                    break
                time.sleep(0.01)  # others settle: SQLite lets any of those in that wait
                continue
            spent = (None, 0.5, -0.25)[len(charged) % 3]
            store.settle({text: spent})
            charged.append(1.0 if spent is None else max(0.0, spent))
        store.close()
        return charged

    with ThreadPoolExecutor(num_clients) as threads:
        return [nats for each in threads.map(spend, range(num_clients)) for nats in each]


def ask(address: str, name: str, *, path: str = "/v1/completions", **body) -> httpx.Response:
    body = {"prompt": "the keeper", "max_tokens": 8, "seed": 1, **body}
    headers = {"authorization": f"Bearer {KEYS.get(name, name)}"}
    return httpx.post(address + path, json=body, headers=headers, timeout=HANG_S)


def account(address: str, name: str) -> dict[str, float]:
    headers = {"authorization": f"Bearer {KEYS[name]}"}
    return httpx.get(f"{address}/v1/anchored/account", headers=headers, timeout=HANG_S).json()


@contextmanager
def serving(pair, folder: Path, policy: Policy, rule: Rule | None = None, **options):
    decoder = Decoder(pair, rule or Pathwise(), batch_size=2)
    with (
        kept(policy, folder, folder / "journal", is_synced=False) as keeper,
        embedded(decoder, folder / "journal", keeper=keeper, **options) as (address, server),
    ):
        yield address, server
