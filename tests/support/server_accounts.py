"""Clients with accounts, what they ask, and what their accounts hold."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from anchored.decode.ledger import LedgerHeader, LedgerStep
from anchored.decode.serving.accounts.policy import Client
from anchored.decode.serving.accounts.store import Exhausted, Store

KEYS = {"alice": "a-key", "bob": "b-key"}

HEADER = LedgerHeader(
    rule="anchored",
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
)


def drawn(place: int, spend: float) -> LedgerStep:
    """A token at such a place of a text, which spent so many nats."""
    return LedgerStep(
        step=place,
        token_id=5,
        accepted=0,
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
            store.settle({text: 0.5 if number % 2 else None})
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
