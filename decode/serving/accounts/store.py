"""Accounts in a database: bounds are reserved before a text is drawn, and what it spent is charged.

For each account, at every moment and after a crash at any of them,

    nats of all drawn texts of a period <= spent + reserved <= its allowance,

as a text's whole bound is reserved in the transaction that finds room for it, and is given up for
the nats that it spent only once the journal holds all that was drawn. The sum of a text's spends is
within its bound after every token, also where tokens give nats back, and a text that gave back more
than it spent is charged nothing: no text makes room for others than what it reserved. All sums are
of whole quanta, so that they are exact in any order.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, bindparam, delete, func, insert, select, tuple_, update

from ...settings import Divergence
from .database import ACCOUNTS, CHARGES, SERVERS, database, wait_for_others
from .policy import Account

QUANTUM: Final = 2.0**-32
"""Nats of a quantum: a power of two, by which doubles are scaled without rounding, and small
enough that the rounding of a million texts is below a thousandth of a nat."""

PAGE: Final = 10_000
"""Charges that are read in one transaction: a tenth of a second, for which others wait."""

MOST_SETTLED: Final = 1000
"""Texts that are settled in one transaction: a twentieth of a second, for which others wait."""


def quanta_above(nats: float) -> int:
    """The least whole number of quanta that are at least so many nats."""
    return math.ceil(nats / QUANTUM)


def quanta_charged(reserved: int, nats: float | None) -> int:
    """Quanta that a text is charged which has spent so many nats: its whole bound for None, none
    where it gave nats back."""
    return reserved if nats is None else min(reserved, quanta_above(max(0.0, nats)))


@dataclass(frozen=True, kw_only=True, slots=True)
class AccountState:
    """One account at one moment; nats."""

    account: str
    allowed: float
    """Nats that accounts.toml allows."""
    extra: float
    """Nats that an operator has set besides."""
    spent: float
    """Nats of texts that have ended in this period."""
    reserved: float
    """Bounds of texts that are drawn."""
    divergence: Divergence
    """The divergence that the sum of both bounds: "kl" once a text of the period was charged means,
    which says nothing of each text, else "max"."""
    available: float
    period_ends: float | None
    """Seconds since 1970; None for a period that never ends."""


class Exhausted(Exception):
    """An account without room for a bound."""

    def __init__(self, state: AccountState, wanted: float) -> None:
        super().__init__(
            f"{state.account} has {state.available:.6g} nats left, and the bound of this request "
            f"is {wanted:.6g}"
        )
        self.state = state


class TooOften(Exception):
    """A client that has sent all requests that it may send in a minute."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server of the accounts."""

    server: str
    folder: str
    boot: str
    is_synced: bool


@dataclass(frozen=True, slots=True)
class Charge:
    """The part of a text in an account; quanta."""

    request_id: str
    account: str
    server: str
    reserved: int
    spent: int | None
    """None while the text is drawn."""
    settled_s: float | None
    """Seconds since 1970; None while the text is drawn."""


class Store:
    """The accounts of all servers that share a database."""

    def __init__(self, where: str, root: Path) -> None:
        """where: as `Policy.store`, a path in the folder `root` for SQLite."""
        self._engine = database(where, root)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def declare(self, accounts: Mapping[str, Account]) -> None:
        """Have these accounts, each with its nats and its period from now on."""
        with self._engine.begin() as connection:
            wait_for_others(connection)
            for name, account in sorted(accounts.items()):
                values = {
                    "allowed": math.floor(account.nats / QUANTUM),
                    "period_s": None if account.days is None else round(account.days * 86400),
                }
                changed = update(ACCOUNTS).where(ACCOUNTS.c.account == name).values(values)
                if connection.execute(changed).rowcount == 0:
                    new: dict[str, Any] = {"account": name, "began_s": int(time.time())}
                    new |= dict.fromkeys(("extra", "spent", "reserved", "minute", "requests"), 0)
                    new["is_mean"] = False
                    connection.execute(insert(ACCOUNTS).values({**new, **values}))

    def set_extra(self, account: str, nats: float) -> None:
        """Let an account have so many nats besides its allowance; KeyError for one that is none."""
        changed = update(ACCOUNTS).where(ACCOUNTS.c.account == account)
        with self._engine.begin() as connection:
            extra = math.floor(nats / QUANTUM)
            if connection.execute(changed.values(extra=extra)).rowcount == 0:
                raise KeyError(account)

    def reserve(
        self,
        bounds: Mapping[str, float],
        accounts: Sequence[str],
        server: str,
        *,
        is_mean: bool = False,
        most_a_minute: int | None = None,
    ) -> None:
        """Reserve the bounds of texts, in nats by request id, in all of these accounts, or nothing.

        is_mean: their steps are charged means. most_a_minute: requests that the first account may
        have. Raises Exhausted where one has no room, and TooOften.
        """
        quanta = {name: quanta_above(nats) for name, nats in bounds.items()}
        wanted, now_s = sum(quanta.values()), int(time.time())
        with self._engine.begin() as connection:
            # In one order, so that no two transactions wait for each other.
            for account in sorted(accounts):
                row = _current(connection, account, now_s)
                if _room(row) < wanted:
                    raise Exhausted(_state(row), wanted * QUANTUM)
                changes = {"reserved": row["reserved"] + wanted}
                changes["is_mean"] = row["is_mean"] or is_mean
                if account == accounts[0] and most_a_minute is not None:
                    changes |= _counted(row, now_s // 60, most_a_minute)
                _change(connection, account, changes)
            rows = [
                {"request_id": name, "account": account, "server": server, "reserved": count}
                for name, count in quanta.items()
                for account in accounts
            ]
            connection.execute(insert(CHARGES), rows)

    def settle(self, texts: Mapping[str, float | None]) -> None:
        """Charge what texts have spent, in nats by request id, in place of their bounds; see
        `quanta_charged`.

        Those that were settled before stay as they are.
        """
        names = list(texts)
        for first in range(0, len(names), MOST_SETTLED):
            with self._engine.begin() as connection:
                part = names[first : first + MOST_SETTLED]
                _settle(connection, {name: texts[name] for name in part})

    def state(self, account: str) -> AccountState:
        """An account now; KeyError for one that is none."""
        with self._engine.begin() as connection:
            return _state(_current(connection, account, int(time.time())))

    def states(self) -> list[AccountState]:
        """All accounts now, in order."""
        with self._engine.begin() as connection:
            names = connection.execute(select(ACCOUNTS.c.account)).scalars().all()
            return [_state(_current(connection, name, int(time.time()))) for name in sorted(names)]

    def join(self, server: Server) -> None:
        """Note a server that is about to reserve."""
        values = {name: getattr(server, name) for name in Server.__dataclass_fields__}
        with self._engine.begin() as connection:
            connection.execute(insert(SERVERS).values(values))

    def leave(self, server: str) -> bool:
        """Forget a server; False, and nothing is done, where texts of it are open."""
        if self.open_texts(server):
            return False
        with self._engine.begin() as connection:
            connection.execute(delete(SERVERS).where(SERVERS.c.server == server))
        return True

    def servers(self) -> list[Server]:
        """All servers that have not left."""
        with self._engine.begin() as connection:
            return [Server(*row) for row in connection.execute(select(SERVERS))]

    def open_texts(self, server: str) -> list[str]:
        """The ids of a server's texts that are not settled."""
        named = select(CHARGES.c.request_id).distinct()
        named = named.where(CHARGES.c.server == server, CHARGES.c.spent.is_(None))
        with self._engine.begin() as connection:
            return sorted(connection.execute(named).scalars())

    def charges(self) -> Iterator[Charge]:
        """All charges, of texts that have ended or not, by request id; servers go on meanwhile, and
        what they reserve may be missing."""
        key = tuple_(CHARGES.c.request_id, CHARGES.c.account)
        columns = [CHARGES.c[name] for name in Charge.__dataclass_fields__]
        query = select(*columns).order_by(*key).limit(PAGE)
        last, is_full = ("", ""), True
        while is_full:
            with self._engine.begin() as connection:
                page = [Charge(*row) for row in connection.execute(query.where(key > last))]
            yield from page
            is_full = len(page) == PAGE
            last = (page[-1].request_id, page[-1].account) if page else last

    def sums(self, account: str) -> dict[str, tuple[int, int]]:
        """Quanta of an account at one moment, "spent" and "reserved": those that it holds, and the
        sum of its charges in its period."""
        with self._engine.begin() as connection:
            row = _current(connection, account, int(time.time()))
            of_account = CHARGES.c.account == account
            within = {
                "spent": CHARGES.c.settled_s >= row["began_s"],
                "reserved": CHARGES.c.spent.is_(None),
            }
            sums = {}
            for name, which in within.items():
                query = select(func.sum(CHARGES.c[name])).where(of_account, which)
                sums[name] = (int(row[name]), int(connection.execute(query).scalar() or 0))
            return sums


@contextmanager
def opened(where: str, root: Path) -> Iterator[Store]:
    """A store, closed at the end."""
    store = Store(where, root)
    try:
        yield store
    finally:
        store.close()


def _current(connection: Connection, account: str, now_s: int) -> dict[str, Any]:
    """An account's row, which no other transaction changes until this one ends; its period is the
    one of now. KeyError for an account that is none."""
    query = select(ACCOUNTS).where(ACCOUNTS.c.account == account).with_for_update()
    if (row := connection.execute(query).mappings().first()) is None:
        raise KeyError(account)
    current = dict(row)
    period_s, began_s = current["period_s"], current["began_s"]
    # A clock that was set back ends no period, and begins none again.
    if period_s is not None and now_s >= began_s + period_s:
        renewed = {"spent": 0, "began_s": now_s - (now_s - began_s) % period_s}
        renewed["is_mean"] = current["is_mean"] and current["reserved"] > 0  # is charged here
        _change(connection, account, renewed)
        current |= renewed
    return current


def _change(connection: Connection, account: str, values: Mapping[str, int]) -> None:
    connection.execute(update(ACCOUNTS).where(ACCOUNTS.c.account == account).values(values))


def _settle(connection: Connection, texts: Mapping[str, float | None]) -> None:
    now = time.time()
    is_open = (CHARGES.c.request_id.in_(texts), CHARGES.c.spent.is_(None))
    # 1. The charges and their accounts, each in one order, so that no two transactions wait for
    #    each other.
    query = select(CHARGES).where(*is_open).order_by(CHARGES.c.request_id, CHARGES.c.account)
    charges = connection.execute(query.with_for_update()).mappings().all()
    names = sorted({charge["account"] for charge in charges})
    rows = {name: _current(connection, name, int(now)) for name in names}
    # 2. What each charge gives up and what it adds.
    settled = []
    for charge in charges:
        row = rows[charge["account"]]
        spent = quanta_charged(charge["reserved"], texts[charge["request_id"]])
        row["reserved"] -= charge["reserved"]
        row["spent"] += spent
        # A clock that was set back settles nothing before its period.
        settled_s = max(now, row["began_s"])
        key = {"of_text": charge["request_id"], "of_account": charge["account"]}
        settled.append({**key, "spent_now": spent, "now": settled_s})
    # 3. Both are written, or neither.
    for name, row in rows.items():
        _change(connection, name, {"reserved": row["reserved"], "spent": row["spent"]})
    if settled:
        changed = update(CHARGES).where(
            CHARGES.c.request_id == bindparam("of_text"),
            CHARGES.c.account == bindparam("of_account"),
        )
        changed = changed.values(spent=bindparam("spent_now"), settled_s=bindparam("now"))
        connection.execute(changed, settled)


def _room(row: Mapping[str, Any]) -> int:
    return int(row["allowed"] + row["extra"] - row["spent"] - row["reserved"])


def _counted(row: Mapping[str, Any], minute: int, most: int) -> dict[str, int]:
    """One more request of a minute; TooOften for one too many."""
    count = row["requests"] if row["minute"] == minute else 0
    if count >= most:
        raise TooOften(f"{row['account']} may send {most} requests a minute: try again later")
    return {"minute": minute, "requests": count + 1}


def _state(row: Mapping[str, Any]) -> AccountState:
    nats = {name: row[name] * QUANTUM for name in ("allowed", "extra", "spent", "reserved")}
    ends = None if row["period_s"] is None else float(row["began_s"] + row["period_s"])
    return AccountState(
        account=row["account"],
        **nats,
        divergence="kl" if row["is_mean"] else "max",
        available=max(0, _room(row)) * QUANTUM,
        period_ends=ends,
    )
