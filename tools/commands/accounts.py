"""The commands that show, change and check the accounts of a server's clients."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from anchored.configs.config_file import from_table, read_toml
from anchored.fields import checked_nats
from anchored.inputs import check_input
from anchored.text_tables import aligned

from .option_types import POSITIONAL

if TYPE_CHECKING:
    from anchored.decode.serving.accounts.policy import Policy
    from anchored.decode.serving.accounts.store import Store


RIGHT = "all charges of texts here are right, and so are the sums of accounts"


def read_policy(path: Path) -> "Policy":
    """The accounts of a file; ValueError, in one line that names it, for what it must not say."""
    from anchored.decode.serving.accounts.policy import Policy

    tables = read_toml(path)  # whose errors name it
    try:
        policy: Policy = from_table(Policy, tables)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return policy


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountsConfig:
    """Show the accounts of a server's clients: anchored accounts --accounts accounts.toml

    Nothing is written, and servers may run meanwhile. --journal checks that every charge is what a
    server's journal says and that each account is the sum of its charges. Needs pip install
    'anchored[serve]'.
    """

    accounts: Path
    """File accounts.toml of the server."""
    journal: tuple[Path, ...] = ()
    """Folders of the journals of all servers that charge these accounts."""

    def __post_init__(self) -> None:
        check_input(self.accounts)
        for folder in self.journal:
            check_input(folder, "folder")


def accounts(config: AccountsConfig) -> int:
    """Show and check; returns the exit status, 1 where a check fails."""
    from anchored.decode.serving.accounts.journals import check

    with _opened(config.accounts) as (store, _):
        _show(store)
        if not config.journal:
            return 0
        problems, counts = check(store, config.journal)
    print(*problems, *counts, *([] if problems else [RIGHT]), sep="\n")
    return 1 if problems else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ApplyConfig:
    """Have the accounts that a file names: anchored accounts apply accounts.toml

    Servers that run follow within seconds: a key that the file has no more lets nobody in, and a
    period that has begun ends when it would have. With --account and --extra one account gets nats
    besides.
    """

    accounts: Annotated[Path, POSITIONAL]
    """File accounts.toml of the servers."""
    account: str | None = None
    """Name of an account, as client/alice or group/lab."""
    extra: float | None = None
    """Nats of this account in every period besides those of the file, in place of what was set
    before."""

    def __post_init__(self) -> None:
        check_input(self.accounts)
        if (self.account is None) != (self.extra is None):
            raise ValueError("--account and --extra go together: which account gets how many nats")
        if self.extra is not None:
            checked_nats("extra", self.extra)


def apply(config: ApplyConfig) -> int:
    """Write the accounts, and show them; returns the exit status."""
    with _opened(config.accounts) as (store, policy):
        if config.account is not None and config.account not in policy.accounts:
            names = ", ".join(policy.accounts)
            raise ValueError(f"--account must be one of {names}, got {config.account}")
        store.apply(policy.accounts, policy.to_json())
        if config.account is not None and config.extra is not None:
            store.set_extra(config.account, config.extra)
        _show(store)
    return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SettleConfig:
    """Charge what a server that is gone for good left open: anchored accounts settle NAME

    Its texts are charged their whole bounds, as nobody knows what was drawn. A server whose journal
    is there is settled by the next one that starts, and needs no such command.
    """

    server: Annotated[str, POSITIONAL]
    """Name of the server, as anchored accounts lists it."""
    accounts: Path
    """File accounts.toml of the server."""

    def __post_init__(self) -> None:
        check_input(self.accounts)


def settle(config: SettleConfig) -> int:
    """Charge and forget a server, and show the accounts; returns the exit status."""
    from anchored.decode.serving.accounts.journals import settle_whole

    with _opened(config.accounts) as (store, _):
        settle_whole(store, config.server)
        _show(store)
    return 0


@contextmanager
def _opened(path: Path) -> Iterator[tuple["Store", "Policy"]]:
    """The store that a file names, and what the file says."""
    policy = read_policy(path)
    from anchored.decode.serving.accounts.store import opened

    with opened(policy.store, path.parent) as store:
        yield store, policy


def _show(store: "Store") -> None:
    """Print the accounts, and the servers that have not left, where there is one."""
    from anchored.decode.serving.accounts.store import QUANTUM

    numbers = ("allowed", "extra", "spent", "reserved", "available")
    rows = [
        [
            state.account,
            *(f"{getattr(state, name):.3f}" for name in numbers),
            state.divergence,
            "for ever" if state.period_ends is None else _day(state.period_ends),
        ]
        for state in store.states()
    ]
    head = ["account", *(f"{name} (nats)" for name in numbers), "divergence", "until"]
    print(aligned(head, rows))
    rows = []
    for server in store.servers():
        texts = store.open_texts(server.server)
        nats = f"{sum(texts.values()) * QUANTUM:.3f}"
        rows.append([server.server, server.folder, _day(server.joined_s), str(len(texts)), nats])
    if rows:
        print(f"\n{aligned(['server', 'journal', 'since', 'open texts', 'reserved (nats)'], rows)}")


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
