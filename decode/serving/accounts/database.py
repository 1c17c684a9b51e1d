"""The database of accounts: its tables, in SQLite or PostgreSQL, and how transactions begin."""

import time
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from ....durable_files import locked

LOCK: Final = 0x616E63686F726564
"""A number of ours among PostgreSQL's locks that applications name: "anchored" in ASCII."""

BUSY_S: Final = 30
"""Seconds for which a transaction waits for those of other processes."""

TABLES: Final = sa.MetaData()
ACCOUNTS: Final = sa.Table(
    "anchored_accounts",
    TABLES,
    sa.Column("account", sa.String, primary_key=True),
    sa.Column("allowed", sa.BigInteger, nullable=False),  # quanta of a period, by accounts.toml
    sa.Column("extra", sa.BigInteger, nullable=False),  # quanta besides, set by an operator
    sa.Column("spent", sa.BigInteger, nullable=False),  # quanta of the period
    sa.Column("reserved", sa.BigInteger, nullable=False),
    sa.Column("divergence", sa.String, nullable=False),  # that the sum of its nats bounds
    sa.Column("period_s", sa.BigInteger),  # of periods that begin now; NULL for one without end
    sa.Column("began_s", sa.BigInteger, nullable=False),  # by the store's clock
    sa.Column("ends_s", sa.BigInteger),  # by the store's clock; NULL for never
)
CHARGES: Final = sa.Table(
    "anchored_charges",
    TABLES,
    sa.Column("request_id", sa.String, primary_key=True),  # as in the journal
    sa.Column("account", sa.String, primary_key=True),
    sa.Column("server", sa.String, nullable=False, index=True),
    sa.Column("reserved", sa.BigInteger, nullable=False),
    sa.Column("spent", sa.BigInteger),  # NULL while the text is drawn
    sa.Column("settled_s", sa.BigInteger),  # by the store's clock
)
SERVERS: Final = sa.Table(
    "anchored_servers",
    TABLES,
    sa.Column("server", sa.String, primary_key=True),
    sa.Column("folder", sa.String, nullable=False),  # of its journal and its lock
    sa.Column("boot", sa.String, nullable=False),  # of the system that it runs on
    sa.Column("is_synced", sa.Boolean, nullable=False),  # the journal outlives a power cut
    sa.Column("joined_s", sa.BigInteger, nullable=False),  # by the system's clock
    sa.Column("files", sa.Text, nullable=False),  # journals there before it, a name a line
)
STORE: Final = sa.Table(
    "anchored_store",
    TABLES,
    sa.Column("version", sa.Integer, primary_key=True),  # of these tables
    sa.Column("clock_s", sa.BigInteger, nullable=False),  # the store's clock, see `Store.now`
    sa.Column("seen_s", sa.BigInteger, nullable=False),  # the system's clock when that went on last
    sa.Column("policy", sa.Text, nullable=False),  # that was applied last, as JSON
)
VERSION: Final = 3


def database(where: str, root: Path) -> sa.Engine:
    """A database that has the tables.

    where: as `Policy.store`, a path in the folder `root` for SQLite. Raises ValueError for an
    address of another kind.
    """
    engine = sa.create_engine(_address(where, root), pool_pre_ping=True)
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
    try:
        _prepare_tables(engine, where, root)
    except BaseException:
        engine.dispose()
        raise
    return engine


def _prepare_tables(engine: sa.Engine, where: str, root: Path) -> None:
    """Make the tables of a database that has none. ValueError where they are of another version."""
    if engine.dialect.name == "sqlite":
        # SQLite refuses at once, whatever its timeout, what meets another who turns on the WAL.
        with locked(root / f"{where}.lock"), engine.connect():
            pass
    with engine.begin() as connection:
        wait_for_others(connection)
        TABLES.create_all(connection)
        version = connection.execute(sa.select(STORE.c.version)).scalar()
        if version is None:
            now_s = int(time.time())
            row = {"version": VERSION, "clock_s": now_s, "seen_s": now_s}
            connection.execute(sa.insert(STORE).values(**row, policy=""))
        elif version != VERSION:
            raise ValueError(f"the accounts in {where} are of version {version}, not of {VERSION}")


def wait_for_others(connection: sa.Connection) -> None:
    """Let no other process make tables or accounts until this transaction ends: PostgreSQL lets two
    look for a row that is not there, and SQLite only one."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))


def _address(where: str, root: Path) -> sa.URL:
    if "://" not in where:
        return sa.URL.create("sqlite", database=str(root / where))
    address = sa.make_url(where)
    if address.get_backend_name() != "postgresql":
        raise ValueError(f"store must be a file or postgresql://..., got {address!r}")
    return address.set(drivername="postgresql+psycopg")


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # else the driver begins transactions, and late
    connection.execute(f"PRAGMA busy_timeout = {BUSY_S * 1000}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # a reservation outlives a power cut


def _begin_sqlite(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")  # what is read is not changed by another process
