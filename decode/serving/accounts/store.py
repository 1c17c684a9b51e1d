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
from .database import ACCOUNTS, CHARGES, SERVERS, STORE, database, wait_for_others
from .policy import Account

QUANTUM: Final = 2.0**-32
"""Nats of a quantum: a power of two, by which doubles are scaled without rounding, and small
enough that the rounding of a million texts is below a thousandth of a nat."""

PAGE: Final = 10_000
"""Charges that are read in one transaction: a tenth of a second, for which others wait."""

MOST_SETTLED: Final = 1000
"""Texts that are settled in one transaction: a twentieth of a second, for which others wait."""

TICK_S: Final = 60
"""Seconds after which the store's clock is written anew: a fraction of the shortest period."""

MOST_PASSED_S: Final = 86_400
"""Seconds that the store's clock goes on at once: days on which no server runs count as one."""


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
    """The divergence that the sum of both bounds: "max" bounds each text, "kl" a mean alone."""
    available: float
    period_ends: float | None
    """Seconds since 1970, by the store's clock; None for a period that never ends."""


class Exhausted(Exception):
    """An account without room for a bound."""

    def __init__(self, state: AccountState, wanted: float) -> None:
        super().__init__(
            f"{state.account} has {state.available:.6g} nats left and {state.reserved:.6g} "
            f"reserved, and the bound of this request is {wanted:.6g}"
        )
        self.state, self.may_pass = state, wanted <= state.available + state.reserved
        """may_pass: there may be room once the texts that are drawn have ended."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server of the accounts."""

    server: str
    folder: str
    boot: str
    is_synced: bool
    joined_s: int
    """Seconds since 1970."""
    files: str
    """Names of the journals that were in its folder before it began, a line each."""


@dataclass(frozen=True, slots=True)
class Charge:
    """The part of a text in an account; quanta."""

    request_id: str
    account: str
    reserved: int
    spent: int | None
    """None while the text is drawn."""


class Store:
    """The accounts of all servers that share a database."""

    def __init__(self, where: str, root: Path) -> None:
        """where: as `Policy.store`, a path in the folder `root` for SQLite."""
        self._engine = database(where, root)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def apply(self, accounts: Mapping[str, Account], policy: str = "") -> None:
        """Create or update accounts: new limits hold at once, new lengths of periods from the next
        one on. policy: what servers take from now on, see `Policy.to_json`."""
        with self._engine.begin() as connection:
            wait_for_others(connection)
            now_s = _clock(connection)
            for name, account in sorted(accounts.items()):
                period_s = None if account.days is None else round(account.days * 86400)
                allowed, ends_s = math.floor(account.nats / QUANTUM), period_s and now_s + period_s
                row: dict[str, Any] = {"allowed": allowed, "period_s": period_s}
                row["divergence"] = account.divergence
                of_account = ACCOUNTS.c.account == name
                if connection.execute(update(ACCOUNTS).where(of_account).values(row)).rowcount == 0:
                    row |= {"account": name, "extra": 0, "spent": 0, "reserved": 0}
                    row |= {"began_s": now_s, "ends_s": ends_s}
                    connection.execute(insert(ACCOUNTS).values(row))
                else:  # what would never have ended ends a period from now
                    endless = update(ACCOUNTS).where(of_account, ACCOUNTS.c.ends_s.is_(None))
                    connection.execute(endless.values(ends_s=ends_s))
            connection.execute(update(STORE).values(policy=policy))

    def policy(self) -> str:
        """The policy that was applied last; the store's clock goes on."""
        with self._engine.begin() as connection:
            _clock(connection)
            return str(connection.execute(select(STORE.c.policy)).scalar_one())

    def set_extra(self, account: str, nats: float) -> None:
        """Let an account have so many nats besides its allowance, in place of those before."""
        changed = update(ACCOUNTS).where(ACCOUNTS.c.account == account)
        with self._engine.begin() as connection:
            connection.execute(changed.values(extra=math.floor(nats / QUANTUM)))

    def reserve(
        self,
        bounds: Mapping[str, float],
        accounts: Sequence[str],
        server: str,
        *,
        is_mean: bool = False,
    ) -> None:
        """Reserve the bounds of texts, in nats by request id, in all of these accounts, or nothing.

        is_mean: they bound a mean over texts alone. Raises Exhausted where an account has no room,
        and ValueError where one bounds every text.
        """
        quanta = {name: quanta_above(nats) for name, nats in bounds.items()}
        wanted = sum(quanta.values())
        with self._engine.begin() as connection:
            now_s = _clock(connection)
            # In one order, so that no two transactions wait for each other.
            for account in sorted(accounts):
                row = _row(connection, account, now_s)
                if is_mean and row["divergence"] == "max":
                    raise ValueError(
                        f"{account} bounds every text, and this server's rule a mean: accounts of "
                        'means have divergence = "kl" in accounts.toml'
                    )
                if _room(row) < wanted:
                    raise Exhausted(_state(row), wanted * QUANTUM)
                _write(connection, {**row, "reserved": row["reserved"] + wanted})
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
            return _state(_row(connection, account, _clock(connection, goes_on=False)))

    def states(self) -> list[AccountState]:
        """All accounts now, in order; nothing is written."""
        with self._engine.begin() as connection:
            names = connection.execute(select(ACCOUNTS.c.account)).scalars().all()
            now_s = _clock(connection, goes_on=False)
            return [_state(_row(connection, name, now_s)) for name in sorted(names)]

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

    def open_texts(self, server: str) -> dict[str, int]:
        """A server's texts that are not settled, and the quanta that each has reserved in the
        account where it is most."""
        open_ones = (CHARGES.c.server == server, CHARGES.c.spent.is_(None))
        query = select(CHARGES.c.request_id, func.max(CHARGES.c.reserved)).where(*open_ones)
        with self._engine.begin() as connection:
            rows = connection.execute(query.group_by(CHARGES.c.request_id)).all()
            return {name: int(quanta) for name, quanta in sorted(rows)}

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
            row = _row(connection, account, _clock(connection, goes_on=False))
            of_account = CHARGES.c.account == account
            is_counted = {
                "spent": CHARGES.c.settled_s >= row["began_s"],
                "reserved": CHARGES.c.spent.is_(None),
            }
            sums = {}
            for name, counted in is_counted.items():
                query = select(func.sum(CHARGES.c[name])).where(of_account, counted)
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


def _clock(connection: Connection, *, goes_on: bool = True) -> int:
    """The store's clock, in seconds since 1970: it goes on with the system's clocks of its servers,
    never back, and at most MOST_PASSED_S at once.

    A clock of a system that jumps ahead, and back again, so ends no period that has not ended.
    """
    row = connection.execute(select(STORE.c.clock_s, STORE.c.seen_s)).one()
    clock_s, now_s = int(row.clock_s), int(time.time())
    passed_s = now_s - int(row.seen_s)
    clock_s += min(max(passed_s, 0), MOST_PASSED_S)
    if goes_on and (passed_s < 0 or passed_s >= TICK_S):
        # Of two servers that do so at once the second finds another `seen_s`, and changes nothing.
        seen = STORE.c.seen_s == row.seen_s
        connection.execute(update(STORE).where(seen).values(clock_s=clock_s, seen_s=now_s))
    return clock_s


def _row(connection: Connection, account: str, now_s: int) -> dict[str, Any]:
    """An account's row, which no other transaction changes until this one ends; its period is the
    one of now. KeyError for an account that is none."""
    query = select(ACCOUNTS).where(ACCOUNTS.c.account == account).with_for_update()
    if (stored := connection.execute(query).mappings().first()) is None:
        raise KeyError(account)
    row = dict(stored)
    ends_s, period_s = row["ends_s"], row["period_s"]
    if ends_s is not None and now_s >= ends_s:
        began_s = ends_s if period_s is None else now_s - (now_s - ends_s) % period_s
        ends_s = None if period_s is None else began_s + period_s
        row |= {"spent": 0, "began_s": began_s, "ends_s": ends_s}
    return row


def _write(connection: Connection, row: Mapping[str, Any]) -> None:
    connection.execute(update(ACCOUNTS).where(ACCOUNTS.c.account == row["account"]).values(row))


def _settle(connection: Connection, texts: Mapping[str, float | None]) -> None:
    now_s = _clock(connection)
    is_open = (CHARGES.c.request_id.in_(texts), CHARGES.c.spent.is_(None))
    # 1. The charges and their accounts, each in one order, so that no two transactions wait for
    #    each other.
    query = select(CHARGES).where(*is_open).order_by(CHARGES.c.request_id, CHARGES.c.account)
    charges = connection.execute(query.with_for_update()).mappings().all()
    names = sorted({charge["account"] for charge in charges})
    rows = {name: _row(connection, name, now_s) for name in names}
    # 2. What each charge gives up and what it adds.
    settled = []
    for charge in charges:
        row = rows[charge["account"]]
        spent = quanta_charged(charge["reserved"], texts[charge["request_id"]])
        row["reserved"] -= charge["reserved"]
        row["spent"] += spent
        key = {"of_text": charge["request_id"], "of_account": charge["account"]}
        settled.append({**key, "spent_now": spent})
    # 3. Both are written, or neither.
    for row in rows.values():
        _write(connection, row)
    if settled:
        changed = update(CHARGES).where(
            CHARGES.c.request_id == bindparam("of_text"),
            CHARGES.c.account == bindparam("of_account"),
        )
        changed = changed.values(spent=bindparam("spent_now"), settled_s=now_s)
        connection.execute(changed, settled)


def _room(row: Mapping[str, Any]) -> int:
    return int(row["allowed"] + row["extra"] - row["spent"] - row["reserved"])


def _state(row: Mapping[str, Any]) -> AccountState:
    nats = {name: row[name] * QUANTUM for name in ("allowed", "extra", "spent", "reserved")}
    return AccountState(
        account=row["account"],
        **nats,
        divergence=row["divergence"],
        available=max(0, _room(row)) * QUANTUM,
        period_ends=None if row["ends_s"] is None else float(row["ends_s"]),
    )
