"""Who may ask a server, and how many nats each may be given: the contents of accounts.toml."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from ....fields import from_record
from ...settings import Divergence

MOST_NATS: Final = 1e9
"""Nats of an account at most: counted in quanta, ten times as many fit 64 bits."""

SHORTEST_DAYS: Final = 1 / 1440
"""Days of a period at least: a minute, as the store counts whole seconds."""

NAME: Final = re.compile(r"[\w.@-]{1,64}", re.ASCII)
"""Names of clients and groups, as they are in lines of logs and in addresses."""

DIGEST: Final = re.compile(r"[0-9a-f]{64}")

FILE_STORE: Final = "accounts.db"


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """A name, and the nats of its account."""

    name: str
    nats: float
    """Nats by which all texts of a period may lie from the safe model at most."""
    days: float | None = None
    """Length of a period, after which the account is empty again; None for one that never ends."""
    divergence: Divergence = "max"
    """The nats bound every text with "max"; with "kl" they bound a mean over texts, which a server
    with the KL budget of the paper needs."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            words = "1 to 64 letters, digits or any of .@_-"
            raise ValueError(f"a name must have {words}, got {self.name!r}")
        if not 0.0 <= self.nats <= MOST_NATS:
            raise ValueError(
                f"nats of {self.name} must be in [0, {MOST_NATS:g}], got {self.nats:g}"
            )
        if self.days is not None and not self.days >= SHORTEST_DAYS:
            raise ValueError(f"days of {self.name} must be at least 1/1440, got {self.days}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Client(Account):
    """A holder of keys to the server, and of an account."""

    key_sha256: tuple[str, ...]
    """Digests of the client's keys in hexadecimal digits, as sha256sum prints them."""
    groups: tuple[str, ...] = ()
    """Groups whose accounts are charged for each request too."""
    may_name: tuple[str, ...] = ()
    """Groups that a request may name in `anchored.group`, to charge their accounts too."""

    def __post_init__(self) -> None:
        Account.__post_init__(self)
        for digest in self.key_sha256:
            if not DIGEST.fullmatch(digest):
                raise ValueError(
                    f"key_sha256 of {self.name} must have 64 hexadecimal digits, got {digest!r}"
                )
        if not self.key_sha256:
            raise ValueError(f"key_sha256 of {self.name} must have at least one digest")


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """The accounts of a server."""

    clients: tuple[Client, ...]
    groups: tuple[Account, ...] = ()
    """Accounts that several clients share: of a tenant, or of a work that texts may copy."""
    store: str = FILE_STORE
    """A file of SQLite, next to accounts.toml unless its path says more, which servers of one
    machine share; or postgresql://USER@HOST/NAME for those of many."""

    def __post_init__(self) -> None:
        groups = {group.name for group in self.groups}
        digests = [digest for client in self.clients for digest in client.key_sha256]
        for kind, names in (
            ("client", [client.name for client in self.clients]),
            ("group", [group.name for group in self.groups]),
            ("key", digests),
        ):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"the {kind} {twice[0]} is there twice")
        if not self.clients:
            raise ValueError("at least one of [[clients]] must be there")
        for client in self.clients:
            for name in (*client.groups, *client.may_name):
                if name not in groups:
                    raise ValueError(
                        f"the group {name!r} of client {client.name} is not defined in [[groups]]"
                    )

    def to_json(self) -> str:
        """The policy as the store keeps it."""
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> "Policy":
        """The policy that `to_json` wrote."""
        policy: Policy = from_record(cls, json.loads(text))
        return policy

    @property
    def keys(self) -> dict[bytes, str]:
        """Names of clients by the digests of their keys."""
        return {
            bytes.fromhex(digest): client.name
            for client in self.clients
            for digest in client.key_sha256
        }

    @property
    def accounts(self) -> Mapping[str, Account]:
        """All accounts, by their names in the store."""
        clients: dict[str, Account] = {client_account(each.name): each for each in self.clients}
        return clients | {group_account(each.name): each for each in self.groups}

    def client(self, name: str) -> Client:
        """The client of a name that `keys` has."""
        return next(client for client in self.clients if client.name == name)

    def num_clients(self, account: str) -> int:
        """The clients whose requests may be charged to an account: of a client's it is one."""
        groups = [(*client.groups, *client.may_name) for client in self.clients]
        return max(1, sum(account in map(group_account, each) for each in groups))

    def accounts_of(self, client: Client, group: str | None) -> list[str]:
        """The accounts that a request charges; ValueError for a group that it may not name."""
        if group is not None and group not in (*client.groups, *client.may_name):
            raise ValueError(f"anchored: {client.name} may not name the group {group!r}")
        named = {*client.groups, *([] if group is None else [group])}
        return sorted([client_account(client.name), *map(group_account, named)])


def client_account(name: str) -> str:
    """The account of a client."""
    return f"client/{name}"


def group_account(name: str) -> str:
    """The account of a group."""
    return f"group/{name}"
