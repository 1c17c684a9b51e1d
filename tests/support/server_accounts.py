"""Clients with accounts, what they ask, and what their accounts hold."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from anchored.decode.serving.accounts.policy import Client
from anchored.decode.serving.accounts.store import Exhausted, Store

KEYS = {"alice": "a-key", "bob": "b-key"}


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


def spend_all(make_store, name: str, clients: int, tries: int) -> tuple[int, int]:
    """Clients that reserve 1 nat each and settle half of it, until there is no room; returns the
    numbers of texts that were drawn and refused."""

    def spend(place: int) -> tuple[int, int]:
        store, drawn = make_store(), 0
        for number in range(tries):
            text = f"{name}-{place}-{number}"
            try:
                store.reserve({text: 1.0}, ["client/a", "group/g"], f"server-{place}")
            except Exhausted:
                continue
            drawn += 1
            store.settle(text, 0.5 if number % 2 else None)
        store.close()
        return drawn, tries - drawn

    with ThreadPoolExecutor(clients) as threads:
        counts = list(threads.map(spend, range(clients)))
    return sum(drawn for drawn, _ in counts), sum(refused for _, refused in counts)


def ask(address: str, name: str, *, path: str = "/v1/completions", **body) -> httpx.Response:
    body = {"prompt": "the keeper", "max_tokens": 8, **body}
    headers = {"authorization": f"Bearer {KEYS.get(name, name)}"}
    return httpx.post(address + path, json=body, headers=headers, timeout=60)


def account(address: str, name: str) -> dict[str, float]:
    headers = {"authorization": f"Bearer {KEYS[name]}"}
    return httpx.get(f"{address}/v1/anchored/account", headers=headers, timeout=60).json()
