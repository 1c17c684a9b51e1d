"""The command that shows, changes and checks the accounts of a server's clients."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anchored.configs.config_file import from_table, read_toml
from anchored.fields import checked_nats
from anchored.inputs import check_input
from anchored.text_tables import aligned

if TYPE_CHECKING:
    from anchored.decode.serving.accounts.policy import Policy
    from anchored.decode.serving.accounts.store import AccountState


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

    With --account and --extra it changes one; with --journal it checks that every charge is what a
    server's journal says, that every text of a server with accounts is charged, and that each
    account is the sum of its charges. Servers may run meanwhile. Needs pip install
    'anchored[serve]'.
    """

    accounts: Path
    """File accounts.toml of the server."""
    account: str | None = None
    """Name of the account to change, as client/alice or group/lab."""
    extra: float | None = None
    """Nats of this account besides those of accounts.toml, in place of what was set before."""
    journal: tuple[Path, ...] = ()
    """Folders of the journals of all servers that charge these accounts."""

    def __post_init__(self) -> None:
        check_input(self.accounts)
        for folder in self.journal:
            check_input(folder, "folder")
        if (self.account is None) != (self.extra is None):
            raise ValueError("--account and --extra go together: which account gets how many nats")
        if self.extra is not None:
            checked_nats("extra", self.extra)


def accounts(config: AccountsConfig) -> int:
    """Show, change or check; returns the exit status, 1 where a check fails."""
    policy = read_policy(config.accounts)
    from anchored.decode.serving.accounts.check import check
    from anchored.decode.serving.accounts.store import opened

    with opened(policy.store, config.accounts.parent) as store:
        store.declare(policy.accounts)
        if config.account is not None and config.extra is not None:
            if config.account not in policy.accounts:
                known = ", ".join(policy.accounts)
                raise ValueError(f"--account must be one of {known}, got {config.account}")
            store.set_extra(config.account, config.extra)
        print(_table(store.states()))
        if not config.journal:
            return 0
        checked = check(store, config.journal)
    for line in checked.lines():
        print(line)
    return 1 if checked.problems else 0


def _table(states: Iterable["AccountState"]) -> str:
    numbers = ("allowed", "extra", "spent", "reserved", "available")
    rows = [
        [
            state.account,
            *(f"{getattr(state, name):.3f}" for name in numbers),
            state.divergence,
            "for ever" if state.period_ends is None else _day(state.period_ends),
        ]
        for state in states
    ]
    head = ["account", *(f"{name} (nats)" for name in numbers), "divergence", "until"]
    return aligned(head, rows)


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
